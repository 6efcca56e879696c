#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "server/metrics/process_facts.h"

namespace quire::server {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;
using Labels = std::map<std::string, std::string>;

const Buckets kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                             1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const Buckets kBetweenTokens = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const Buckets kRequest = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                          30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const Buckets kStep = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0};

// 1, 2, 5, 10, 20, ... up to the longest request.
Buckets length_buckets(std::int32_t most) {
  Buckets buckets;
  for (std::int64_t power = 1;; power *= 10) {
    for (const std::int64_t step : {1, 2, 5}) {
      if (power * step > most) return buckets;
      buckets.push_back(static_cast<double>(power * step));
    }
  }
}

const char* finished_reason(Finish finish) {
  switch (finish) {
    case Finish::stop:
      return "stop";
    case Finish::length:
    case Finish::context:
      return "length";
    case Finish::failed:
      return "error";
    case Finish::none:
    case Finish::cancelled:
    case Finish::deadline:
      break;
  }
  return "abort";
}

// In the order of Refusal::Why.
constexpr std::array kRefusalReasons = {"invalid", "never_fits", "queue_full", "draining"};
static_assert(kRefusalReasons.size() == static_cast<std::size_t>(Refusal::Why::draining) + 1);
constexpr std::size_t kFinishes = static_cast<std::size_t>(Finish::deadline) + 1;

// A counter that follows a total which is kept elsewhere.
void follow(Counter& counter, double total) { counter.Increment(std::max(0.0, total - counter.Value())); }
void follow(Counter& counter, std::int64_t total) { follow(counter, static_cast<double>(total)); }

}  // namespace

// All series. Those of steps and requests are looked up once, here or when the engine first names their group
// or reason, and the loop's thread only adds to them; those of the process and of HTTP are looked up when
// somebody asks.
struct Metrics::State {
  State(const std::string& model, std::int32_t max_tokens)
      : labels{{"model_name", model}, {"engine", "0"}}, lengths(length_buckets(max_tokens)) {
    for (std::size_t finish = 0; finish < success.size(); ++finish)
      success[finish] = &counter("vllm:request_success_total", "Requests that ended, by how.",
                                 {{"finished_reason", finished_reason(static_cast<Finish>(finish))}});
    for (std::size_t why = 0; why < refusals.size(); ++why)
      refusals[why] =
          &counter("quire_requests_refused_total", "Groups of requests that were not taken, by why.",
                   {{"reason", kRefusalReasons[why]}});
  }

  Labels with(const Labels& more) const {
    Labels all = labels;
    all.insert(more.begin(), more.end());
    return all;
  }
  Counter& counter(const char* name, const char* help, const Labels& more = {}) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(with(more));
  }
  Gauge& gauge(const char* name, const char* help, const Labels& more = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(with(more));
  }
  Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
  }

  void update_engine(Session& session);
  void update_cache(const EngineStats& stats);
  void update_process();
  void update_http();

  struct GroupPages {  // of one KV group
    Gauge* used = nullptr;
    Gauge* cached = nullptr;
    Gauge* most = nullptr;
  };
  struct Live {                // the loop's thread only
    double submitted_s = 0.0;  // steady clock
    double queued_s = 0.0;     // before the session took it
    double first_s = 0.0;      // 0: no token yet
    double last_s = 0.0;
  };

  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  Labels labels;
  Buckets lengths;
  LoadHistory history;
  std::unordered_map<RequestId, Live> live;
  double updated_s = 0.0;
  std::mutex http_mutex;
  std::function<HttpServerStats()> http;

  Gauge& running = gauge("vllm:num_requests_running", "Requests that run.");
  Gauge& waiting = gauge("vllm:num_requests_waiting", "Requests that wait for a place.");
  Gauge& usage = gauge("vllm:kv_cache_usage_perc", "KV memory that cannot be given to others now, 1 is all.");
  Counter& queries = counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.");
  Counter& hits = counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.");
  Counter& preemptions = counter("vllm:num_preemptions_total", "Times a request lost its pages to another.");
  Counter& prompt_tokens =
      counter("vllm:prompt_tokens_total", "Prompt tokens computed or found in the cache.");
  Counter& output_tokens = counter("vllm:generation_tokens_total", "Tokens of answers.");
  std::array<Counter*, kFinishes> success{};                // by Finish; some share one
  std::array<Counter*, kRefusalReasons.size()> refusals{};  // by Refusal::Why
  Histogram& first_token =
      histogram("vllm:time_to_first_token_seconds", "From submission to the first token.", kFirstToken);
  Histogram& between =
      histogram("vllm:inter_token_latency_seconds", "Between the tokens of an answer.", kBetweenTokens);
  Histogram& per_token = histogram("vllm:time_per_output_token_seconds",
                                   "Between the tokens of an answer (the older name).", kBetweenTokens);
  Histogram& request_per_token =
      histogram("vllm:request_time_per_output_token_seconds", "Its mean over each answer.", kBetweenTokens);
  Histogram& end_to_end =
      histogram("vllm:e2e_request_latency_seconds", "From submission to the end.", kRequest);
  Histogram& queue_time =
      histogram("vllm:request_queue_time_seconds", "From submission until it first ran.", kRequest);
  Histogram& prefill =
      histogram("vllm:request_prefill_time_seconds", "From its first step to the first token.", kRequest);
  Histogram& decode =
      histogram("vllm:request_decode_time_seconds", "From the first token to the last.", kRequest);
  Histogram& inference =
      histogram("vllm:request_inference_time_seconds", "From its first step to the end.", kRequest);
  Histogram& prompt_length = histogram("vllm:request_prompt_tokens", "Prompt lengths.", lengths);
  Histogram& output_length = histogram("vllm:request_generation_tokens", "Answer lengths.", lengths);

  Counter& steps = counter("quire_engine_steps_total", "Steps of the engine.");
  Counter& replayed = counter("quire_engine_replayed_steps_total", "Decode steps that replayed a recording.");
  Counter& computed = counter("quire_prompt_tokens_computed_total", "Prompt tokens computed.");
  Counter& evicted = counter("quire_kv_pages_evicted_total", "Pages that the prefix cache gave up.");
  Counter& device_busy = counter("quire_device_busy_seconds_total", "Time in which the device computed.");
  Counter& host_step = counter("quire_host_step_seconds_total", "Host time of steps, waiting left out.");
  std::vector<GroupPages> group_pages;
  std::vector<Counter*> misses;  // in the order of EngineStats::why_miss
  Gauge& used = gauge("quire_kv_memory_used_ratio", "KV memory in pages that requests or the cache have.");
  Histogram& step_time = histogram("quire_step_seconds", "One turn of the engine.", kStep);
};

void Metrics::State::update_engine(Session& session) {
  const EngineStats stats = session.engine().stats();
  const Queue queue = session.engine().queue();
  running.Set(queue.running);
  waiting.Set(queue.waiting);
  usage.Set(stats.kv_held);
  used.Set(stats.kv_used);
  follow(queries, stats.looked_up_tokens);
  follow(hits, stats.cached_tokens);
  follow(preemptions, stats.retractions);
  follow(prompt_tokens, stats.prompt_tokens + stats.cached_tokens);
  follow(output_tokens, stats.output_tokens);
  follow(steps, stats.steps);
  follow(replayed, stats.replayed_steps);
  follow(computed, stats.prompt_tokens);
  follow(evicted, stats.pages_evicted);
  follow(device_busy, stats.device_busy_s);
  follow(host_step, stats.host_step_s);
  update_cache(stats);
  history.note({.time = unix_now(),
                .output_tokens = stats.output_tokens,
                .prompt_tokens = stats.prompt_tokens,
                .cached_tokens = stats.cached_tokens,
                .looked_up_tokens = stats.looked_up_tokens,
                .running = queue.running,
                .waiting = queue.waiting,
                .kv_held = stats.kv_held,
                .kv_used = stats.kv_used});
}

void Metrics::State::update_cache(const EngineStats& stats) {
  for (std::size_t g = group_pages.size(); g < stats.pages_in_use.size(); ++g) {
    const Labels group = {{"group", std::to_string(g)}};
    group_pages.push_back({&gauge("quire_kv_pages", "Pages in use, by KV group.", group),
                           &gauge("quire_kv_pages_cached", "Of these, the prefix cache's own.", group),
                           &gauge("quire_kv_pages_most", "Pages that the group could have alone.", group)});
  }
  for (std::size_t g = 0; g < stats.pages_in_use.size(); ++g) {
    group_pages[g].used->Set(static_cast<double>(stats.pages_in_use[g]));
    group_pages[g].cached->Set(static_cast<double>(stats.pages_cached[g]));
    group_pages[g].most->Set(static_cast<double>(stats.pages_most[g]));
  }
  for (std::size_t i = misses.size(); i < stats.why_miss.size(); ++i)
    misses.push_back(&counter("quire_cache_miss_requests_total",
                              "Requests by why no more of their prompt was cached.",
                              {{"reason", stats.why_miss[i].first}}));
  for (std::size_t i = 0; i < stats.why_miss.size(); ++i) follow(*misses[i], stats.why_miss[i].second);
}

void Metrics::State::update_process() {
  const ProcessFacts facts = process_facts();
  gauge("process_resident_memory_bytes", "Memory in RAM.").Set(facts.resident_bytes);
  gauge("process_virtual_memory_bytes", "Address space.").Set(facts.virtual_bytes);
  gauge("process_open_fds", "Open file descriptors.").Set(facts.open_fds);
  gauge("process_max_fds", "The limit of them.").Set(facts.max_fds);
  gauge("process_threads", "Threads.").Set(facts.threads);
  gauge("process_start_time_seconds", "Unix time of the start.").Set(facts.start_time_s);
  follow(counter("process_cpu_seconds_total", "CPU time, user and system."), facts.cpu_s);
}

void Metrics::State::update_http() {
  const std::lock_guard lock(http_mutex);
  if (!http) return;
  const HttpServerStats stats = http();
  gauge("quire_http_connections", "Open connections.").Set(static_cast<double>(stats.connections));
  gauge("quire_http_body_bytes", "Memory of requests that are read or handled.")
      .Set(static_cast<double>(stats.body_bytes));
  follow(counter("quire_http_connections_total", "Accepted connections."), stats.accepted);
  follow(counter("quire_http_connections_refused_total", "Connections over the limit."), stats.refused);
  follow(counter("quire_http_requests_total", "HTTP requests."), stats.requests);
  follow(counter("quire_http_clients_left_total", "Clients gone before their answer was complete."),
         stats.left);
  follow(counter("quire_http_slow_readers_total", "Of these, given up for reading too slowly."), stats.slow);
}

Metrics::Metrics(const std::string& model, std::int32_t max_tokens)
    : state_(std::make_unique<State>(model, max_tokens)) {}
Metrics::~Metrics() = default;

void Metrics::taken(RequestId id, double queued_s) {
  state_->live[id] = {.submitted_s = steady_now() - queued_s, .queued_s = queued_s};
}

void Metrics::answered(int status) {
  if (status == 0) return;
  state_
      ->counter("quire_http_answers_total", "HTTP answers, by status.", {{"status", std::to_string(status)}})
      .Increment();
}

void Metrics::refused(Ticket, const Refusal& refusal) {
  state_->refusals[static_cast<std::size_t>(refusal.why)]->Increment();
}

void Metrics::output(const TextOutput& output, double now_s) {
  const auto found = state_->live.find(output.id);
  if (found == state_->live.end()) return;
  State::Live& live = found->second;
  if (!output.tokens.empty()) {
    if (live.first_s == 0.0) {
      live.first_s = now_s;
      state_->first_token.Observe(now_s - live.submitted_s);
    } else {
      state_->between.Observe(now_s - live.last_s);
      state_->per_token.Observe(now_s - live.last_s);
    }
    live.last_s = now_s;
  }
  if (output.finish == Finish::none) return;
  state_->success[static_cast<std::size_t>(output.finish)]->Increment();
  const double queued_s = live.queued_s + output.queued_s;
  const double began_s = live.submitted_s + queued_s;
  state_->end_to_end.Observe(now_s - live.submitted_s);
  state_->queue_time.Observe(queued_s);
  state_->inference.Observe(std::max(0.0, now_s - began_s));
  state_->prompt_length.Observe(output.prompt_tokens);
  state_->output_length.Observe(output.completion_tokens);
  if (live.first_s > 0.0) {
    state_->prefill.Observe(std::max(0.0, live.first_s - began_s));
    state_->decode.Observe(live.last_s - live.first_s);
    if (output.completion_tokens > 1)
      state_->request_per_token.Observe((live.last_s - live.first_s) / (output.completion_tokens - 1));
  }
  state_->live.erase(found);
}

void Metrics::turn(Session& session, double step_s) {
  state_->step_time.Observe(step_s);
  const double now = steady_now();
  const Queue queue = session.engine().queue();
  if (now < state_->updated_s + kPeriod && queue.running + queue.waiting > 0) return;
  state_->updated_s = now;
  state_->update_engine(session);
}

void Metrics::follow_http(std::function<HttpServerStats()> stats) {
  const std::lock_guard lock(state_->http_mutex);
  state_->http = std::move(stats);
}

std::string Metrics::text() {
  state_->update_process();
  state_->update_http();
  return prometheus::TextSerializer().Serializer::Serialize(state_->registry.Collect());
}

const LoadHistory& Metrics::history() const { return state_->history; }

void add_metrics_routes(Router& router, Metrics& metrics) {
  router.add(
      "GET", "/metrics", RouteAccess::open,
      [&metrics](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        responder->send({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics.text()});
      });
}

}  // namespace quire::server
