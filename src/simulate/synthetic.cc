#include "simulate/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/key_values.h"
#include "base/nearest.h"
#include "base/text.h"
#include "simulate/random.h"

namespace quire::simulate {
namespace {

constexpr std::array<std::pair<std::string_view, TrafficKind>, 5> kKinds = {{{"shared", TrafficKind::shared},
                                                                             {"chat", TrafficKind::chat},
                                                                             {"agents", TrafficKind::agents},
                                                                             {"bursts", TrafficKind::bursts},
                                                                             {"mix", TrafficKind::mix}}};

// Seconds that an answer takes before its reader goes on: only the spacing of turns depends on it.
constexpr double kAnswerTokenS = 0.03;
constexpr double kThinkS = 10.0;
constexpr double kToolS = 0.5;

class Generator {
 public:
  Generator(const SyntheticSpec& spec, std::uint64_t seed, Trace& trace)
      : spec_(spec), seed_(seed), random_(seed), trace_(trace), end_(trace.requests.size() + wanted()) {}

  void make() {
    switch (spec_.kind) {
      case TrafficKind::shared:
        return questions(0.0);
      case TrafficKind::bursts:
        return questions(20.0);
      case TrafficKind::chat:
        return groups(8.0, [this](double at) { conversation(at); });
      case TrafficKind::agents:
        return groups(14.0, [this](double at) { task(at); });
      case TrafficKind::mix:
        QUIRE_CHECK(false, "a mix is made of the other kinds");
    }
  }

 private:
  std::size_t wanted() const { return static_cast<std::size_t>(spec_.requests); }
  bool done() const { return trace_.requests.size() >= end_; }
  std::uint64_t fresh() { return mix(seed_, next_content_++) >> 2; }
  // Low numbers come often: the i-th prefix about 1 / (i + 1) as often as the first.
  Segment prefix() {
    const double u = random_.unit();
    const auto index = static_cast<std::int32_t>(std::pow(spec_.prefixes + 1.0, u)) - 1;
    const std::uint64_t content = mix(seed_, 0xffff0000u + static_cast<std::uint64_t>(index)) >> 2;
    return {content, std::min(Random(content).length(spec_.prompt), spec_.context / 4)};
  }
  // With the prefix it always fits the context, so every group makes at least one request.
  Segment message() { return {fresh(), std::min(random_.length(spec_.message), spec_.context / 8)}; }

  // One request; the segment of its answer. Nothing when it would not fit the context.
  Segment ask(double at, const std::vector<Segment>& prompt) {
    std::int32_t tokens = 0;
    for (const Segment& segment : prompt) tokens += segment.tokens;
    TraceRequest request;
    request.arrival_s = at;
    request.output_tokens = std::min(random_.length(spec_.output), spec_.context / 8);
    if (done() || tokens + request.output_tokens > spec_.context) return {};
    // Half of the answers end before their limit.
    const std::int32_t spare = random_.chance(0.5) ? random_.length(spec_.output) : 0;
    request.max_tokens = std::min(request.output_tokens + spare, spec_.context - tokens);
    request.output_content = fresh();
    request.priority = random_.chance(0.1) ? 1 : 0;
    add_request(trace_, request, prompt);
    return {request.output_content, request.output_tokens};
  }

  // Poisson arrivals; with bursts, every tenth stretch of 40 requests is that much denser.
  void questions(double burst) {
    double at = 0.0;
    for (std::int64_t i = 0; !done(); ++i) {
      const bool dense = burst > 0 && i / 40 % 10 == 9;
      at += random_.exponential(1.0 / (dense ? spec_.rate * burst : spec_.rate));
      ask(at, {prefix(), message()});
    }
  }

  // Groups of about `size` requests, started so that the rate comes out.
  void groups(double size, const std::function<void(double)>& start) {
    for (double at = 0.0; !done(); at += random_.exponential(size / spec_.rate)) start(at);
  }

  void conversation(double at) {
    std::vector<Segment> history = {prefix()};
    do {
      if (history.size() > 3 && random_.chance(0.15)) edit(history);
      history.push_back(message());
      const Segment answer = ask(at, history);
      if (answer.tokens == 0) return;
      history.push_back(answer);
      at += answer.tokens * kAnswerTokenS + random_.exponential(kThinkS);
    } while (random_.chance(0.88));
  }

  // Back to an earlier message: its beginning stays, the rest and all that followed is gone.
  void edit(std::vector<Segment>& history) {
    const auto turns = static_cast<std::int32_t>(history.size() - 1) / 2;
    const auto at = static_cast<std::size_t>(1 + 2 * random_.below(turns));
    history.resize(at + 1);
    history[at].tokens = random_.below(std::max(1, history[at].tokens));
  }

  struct Node {
    double at = 0.0;
    std::vector<Segment> context;
    int depth = 0;
  };

  void task(double at) {
    std::vector<Node> open = {{at, {prefix(), message()}, 0}};
    while (!open.empty() && !done()) {
      Node node = std::move(open.back());
      open.pop_back();
      bool going = true;
      for (int step = 1 + random_.below(3); step > 0 && going; --step) {
        const Segment answer = ask(node.at, node.context);
        going = answer.tokens > 0;
        node.context.push_back(answer);
        node.context.push_back(message());  // what the tool said
        node.at += answer.tokens * kAnswerTokenS + random_.exponential(kToolS);
      }
      if (!going || node.depth == 2) continue;
      for (int child = random_.below(4); child > 0; --child) {
        Node forked = node;
        forked.context.push_back(message());
        ++forked.depth;
        open.push_back(std::move(forked));
      }
    }
  }

  SyntheticSpec spec_;
  std::uint64_t seed_ = 0;
  Random random_;
  Trace& trace_;
  std::size_t end_ = 0;
  std::uint64_t next_content_ = 1;
};

void add_faults(const SyntheticSpec& spec, std::uint64_t seed, Trace& trace) {
  Random random(mix(seed, 0xfa17));
  for (TraceRequest& request : trace.requests) {
    if (random.chance(spec.aborts)) {
      request.faults.abort_after = random.chance(0.2) ? 0 : random.below(2 * request.output_tokens + 8);
    }
    if (random.chance(spec.refusals)) request.faults.refuse_after = random.below(request.output_tokens + 8);
    if (random.chance(spec.slow))
      request.faults.read_tokens_s = static_cast<float>(1.0 + 4.0 * random.unit());
  }
}

struct Key {
  std::string_view name;
  std::int32_t SyntheticSpec::*count = nullptr;  // either a count
  double SyntheticSpec::*number = nullptr;       // or a number
  double low = 1;
  double high = 1;
};

constexpr std::int32_t kTokensMost = 1 << 20;
constexpr std::array<Key, 10> kKeys = {{
    {"requests", &SyntheticSpec::requests, nullptr, 1, 50'000'000},
    {"rate", nullptr, &SyntheticSpec::rate, 1e-6, 1e9},
    {"prompt", &SyntheticSpec::prompt, nullptr, 1, kTokensMost},
    {"message", &SyntheticSpec::message, nullptr, 1, kTokensMost},
    {"output", &SyntheticSpec::output, nullptr, 1, kTokensMost},
    {"prefixes", &SyntheticSpec::prefixes, nullptr, 1, 1'000'000},
    {"context", &SyntheticSpec::context, nullptr, 16, kTokensMost},
    {"aborts", nullptr, &SyntheticSpec::aborts, 0, 1},
    {"refusals", nullptr, &SyntheticSpec::refusals, 0, 1},
    {"slow", nullptr, &SyntheticSpec::slow, 0, 1},
}};

Status set_key(SyntheticSpec& spec, std::string_view name, std::string_view value) {
  for (const Key& key : kKeys) {
    if (key.name != name) continue;
    double number = 0.0;
    std::int32_t count = 0;
    const bool parsed = key.count != nullptr ? parse_number(value, &count) : parse_number(value, &number);
    if (key.count != nullptr) number = count;
    if (!parsed || !(number >= key.low && number <= key.high))
      return bad_input(fmt::format("--synthetic: {}={} is not a {} from {} to {}", name, value,
                                   key.count != nullptr ? "whole number" : "number", key.low, key.high));
    if (key.count != nullptr) {
      spec.*key.count = count;
    } else {
      spec.*key.number = number;
    }
    return {};
  }
  std::vector<std::string_view> names;
  for (const Key& key : kKeys) names.push_back(key.name);
  return bad_input(fmt::format("--synthetic: unknown key {}{}", name, did_you_mean(name, names)));
}

}  // namespace

Result<SyntheticSpec> parse_synthetic(const std::string& text) {
  SyntheticSpec spec;
  const std::string_view view = text;
  const std::string_view kind = view.substr(0, view.find(':'));
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.first == kind; });
  if (found == kKinds.end())
    return bad_input(
        fmt::format("--synthetic {}: the kinds are shared, chat, agents, bursts and mix; give "
                    "KIND or KIND:key=value,...",
                    kind));
  spec.kind = found->second;
  QUIRE_TRY_STATUS(each_key_value(
      view.substr(std::min(view.size(), kind.size() + 1)), "--synthetic", "key=value",
      [&](std::string_view key, std::string_view value) { return set_key(spec, key, value); }));
  return spec;
}

Trace make_trace(const SyntheticSpec& spec, std::uint64_t seed) {
  Trace trace;
  if (spec.kind == TrafficKind::mix) {
    constexpr std::int32_t kParts = 4;
    for (std::int32_t part = 0; part < kParts; ++part) {
      SyntheticSpec one = spec;
      one.kind = kKinds[static_cast<std::size_t>(part)].second;
      one.requests = (spec.requests + part) / kParts;
      one.rate = spec.rate / kParts;
      if (one.requests > 0) Generator(one, mix(seed, static_cast<std::uint64_t>(part)), trace).make();
    }
  } else {
    Generator(spec, seed, trace).make();
  }
  sort_by_arrival(trace);
  add_faults(spec, seed, trace);
  return trace;
}

}  // namespace quire::simulate
