// /metrics: what is observed of requests by hand-made times, and the text over a tiny model that works.
#include "server/metrics/metrics.h"
#include "base/clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <regex>
#include <sstream>

#include "base/golden_dir.h"
#include "server/metrics/process_facts.h"

namespace quire::server {
namespace {

// Series with their labels to values; every line must be one of the format.
std::map<std::string, double> parse(const std::string& text) {
  static const std::regex kLine(R"re(([a-zA-Z_:][\w:]*(\{(\w+="([^"\\]|\\.)*",?)*\})?) ([-+.\deInfNa]+))re");
  std::map<std::string, double> series;
  std::map<std::string, int> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_EQ(++types[line.substr(7, line.find(' ', 7) - 7)], 1) << line;
      continue;
    }
    if (line.rfind("# HELP ", 0) == 0) continue;
    std::smatch match;
    if (!std::regex_match(line, match, kLine)) {
      ADD_FAILURE() << "no line of the format: " << line;
      continue;
    }
    EXPECT_TRUE(series.emplace(match[1], std::stod(match[5])).second) << "twice: " << line;
  }
  return series;
}

// The sum over all series of the name, whatever their labels, that hold `part`.
double value(const std::map<std::string, double>& series, const std::string& name,
             const std::string& part = "") {
  double sum = 0.0;
  int found = 0;
  for (const auto& [key, number] : series) {
    if (key.substr(0, key.find('{')) != name || key.find(part) == std::string::npos) continue;
    sum += number;
    ++found;
  }
  EXPECT_GT(found, 0) << name << " " << part;
  return sum;
}

TEST(Metrics, TimesOfARequest) {
  Metrics metrics("m", 1000);
  const double now = steady_now();
  metrics.taken(7, 0.5);
  TextOutput output;
  output.id = 7;
  output.tokens = {1};
  metrics.output(output, now + 2.0);
  metrics.output(output, now + 2.3);
  output.tokens = {2, 3};
  output.finish = Finish::stop;
  output.prompt_tokens = 40;
  output.completion_tokens = 4;
  output.queued_s = 0.25;
  metrics.output(output, now + 3.0);
  metrics.taken(8, 0.0);
  metrics.output({.id = 8, .finish = Finish::cancelled, .prompt_tokens = 5}, now + 1.0);
  metrics.output({.id = 99, .tokens = {1}}, now);  // of nobody that is known
  metrics.refused(3, Refusal{Refusal::Why::queue_full, "full", 1.0});
  for (const int status : {400, 200, 0, 400}) metrics.answered(status);
  const auto series = parse(metrics.text());
  const auto near = [&](const char* name, double wanted) {
    EXPECT_NEAR(value(series, name), wanted, 0.05) << name;
  };
  near("vllm:time_to_first_token_seconds_count", 1);
  near("vllm:time_to_first_token_seconds_sum", 2.5);
  near("vllm:inter_token_latency_seconds_count", 2);
  near("vllm:inter_token_latency_seconds_sum", 1.0);
  near("vllm:time_per_output_token_seconds_sum", 1.0);
  near("vllm:request_time_per_output_token_seconds_sum", 1.0 / 3);
  near("vllm:e2e_request_latency_seconds_count", 2);
  near("vllm:e2e_request_latency_seconds_sum", 3.5 + 1.0);
  near("vllm:request_queue_time_seconds_sum", 0.75);
  near("vllm:request_prefill_time_seconds_sum", 2.5 - 0.75);
  near("vllm:request_decode_time_seconds_sum", 1.0);
  near("vllm:request_inference_time_seconds_sum", 3.5 - 0.75 + 1.0);
  near("vllm:request_prompt_tokens_sum", 45);
  near("vllm:request_generation_tokens_sum", 4);
  EXPECT_EQ(value(series, "vllm:request_success_total", "\"stop\""), 1);
  EXPECT_EQ(value(series, "vllm:request_success_total", "\"abort\""), 1);
  EXPECT_EQ(value(series, "vllm:request_success_total", "\"length\""), 0);
  EXPECT_EQ(value(series, "quire_requests_refused_total", "queue_full"), 1);
  EXPECT_EQ(value(series, "quire_http_answers_total", "\"400\""), 2);
  EXPECT_EQ(value(series, "quire_http_answers_total", "\"200\""), 1);
  EXPECT_EQ(metrics.text().find("status=\"0\""), std::string::npos);
  // 0.3 and 0.7 s between tokens: one is over 0.5.
  EXPECT_EQ(value(series, "vllm:inter_token_latency_seconds_bucket", "le=\"0.5\""), 1);
  EXPECT_EQ(value(series, "vllm:inter_token_latency_seconds_bucket", "le=\"+Inf\""), 2);
}

TEST(Metrics, OfAWorkingEngine) {
  const std::string root = quire::testing::golden_dir();
  if (root.empty()) FAIL() << "no golden data";
  Options options;
  options.max_context = 256;
  options.page_size = 8;
  options.kv_memory_bytes = 1 << 20;
  options.threads = 1;
  auto session = Session::open(root + "/models/llama", options);
  ASSERT_TRUE(session.ok()) << session.error().message;
  Metrics metrics("a \"model\"", 256);
  EngineLoop loop(std::move(*session), &metrics);
  std::atomic<int> left = 5;
  std::promise<void> done;
  std::vector<TextRequest> requests(5);
  for (TextRequest& request : requests) {
    request.ids.assign(50, 3);
    request.max_tokens = 20;
    request.ignore_eos = true;
  }
  loop.submit(std::move(requests), [&](Update update) {
    if (update.output.finish != Finish::none && --left == 0) done.set_value();
  });
  done.get_future().wait();
  std::promise<void> turned;  // the turn of the last outputs has ended
  loop.post([&turned](Session&) { turned.set_value(); });
  turned.get_future().wait();
  metrics.follow_http([] { return HttpServerStats{.connections = 3, .requests = 17}; });
  metrics.text();
  const auto series = parse(metrics.text());
  EXPECT_EQ(value(series, "vllm:generation_tokens_total"), 100);
  EXPECT_EQ(value(series, "vllm:prefix_cache_queries_total"), 250);
  EXPECT_GT(value(series, "vllm:prefix_cache_hits_total"), 0);
  EXPECT_EQ(value(series, "vllm:prompt_tokens_total"), 250);
  EXPECT_EQ(
      value(series, "quire_prompt_tokens_computed_total") + value(series, "vllm:prefix_cache_hits_total"),
      250);
  EXPECT_EQ(value(series, "vllm:request_success_total", "\"length\""), 5);
  EXPECT_EQ(value(series, "vllm:inter_token_latency_seconds_count"), 95);
  EXPECT_EQ(value(series, "vllm:num_requests_running"), 0);
  EXPECT_EQ(value(series, "vllm:num_requests_waiting"), 0);
  EXPECT_EQ(value(series, "vllm:kv_cache_usage_perc"), 0);
  EXPECT_EQ(value(series, "vllm:num_preemptions_total"), 0);
  EXPECT_GT(value(series, "quire_kv_memory_used_ratio"), 0);
  EXPECT_GT(value(series, "quire_engine_steps_total"), 20);
  EXPECT_EQ(value(series, "quire_cache_miss_requests_total"), 5);
  EXPECT_EQ(value(series, "quire_http_connections"), 3);
  EXPECT_EQ(value(series, "quire_http_requests_total"), 17);
  EXPECT_GT(value(series, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_FALSE(metrics.history().samples().empty());
}

TEST(Metrics, ProcessFacts) {
  const ProcessFacts before = process_facts();
  const int copy = dup(1);
  const ProcessFacts after = process_facts();
  close(copy);
  EXPECT_EQ(after.open_fds, before.open_fds + 1);
  EXPECT_GE(after.max_fds, after.open_fds);
  EXPECT_GE(after.threads, 1);
  EXPECT_GT(after.start_time_s, 1e9);
  EXPECT_GT(after.virtual_bytes, after.resident_bytes);
}

}  // namespace
}  // namespace quire::server
