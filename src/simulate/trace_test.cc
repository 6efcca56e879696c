#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "simulate/simulation.h"
#include "simulate/synthetic.h"
#include "simulate/trace_file.h"

namespace quire::simulate {
namespace {

std::vector<std::int32_t> tokens_of(const Trace& trace, std::size_t index) {
  std::vector<std::int32_t> tokens;
  append_prompt(trace, trace.requests[index], tokens);
  return tokens;
}

std::size_t common(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

TEST(TraceFile, MooncakeBlocksOfEqualIdsAreEqualTokens) {
  const Result<Trace> trace =
      parse_trace(R"({"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [5, 6, 9]})"
                  "\n"
                  R"({"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [5, 6]})"
                  "\n\n"
                  R"({"timestamp": 1, "input_length": 513, "output_length": 3, "hash_ids": [6, 5]})"
                  "\n",
                  "t");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->requests[0].arrival_s, 0.0);
  EXPECT_EQ(trace->requests[2].arrival_s, 3.0);
  EXPECT_EQ(trace->requests[2].prompt_tokens, 1100);
  EXPECT_EQ(trace->requests[2].output_tokens, 7);
  EXPECT_EQ(tokens_of(*trace, 2).size(), 1100u);
  EXPECT_EQ(common(tokens_of(*trace, 0), tokens_of(*trace, 2)), 1024u);
  EXPECT_EQ(common(tokens_of(*trace, 0), tokens_of(*trace, 1)), 0u);
}

// Requests of the published trace: arrival, lengths and blocks as they stand in FAST25-release/traces/
// synthetic_trace.jsonl of github.com/kvcache-ai/Mooncake (Apache License 2.0), 602.7 s to 612.9 s after its
// begin, most left out. Blocks that follow each other are written as a range, and one more may come after it.
struct Published {
  int timestamp;
  int input;
  int output;
  int first_block;
  int last_block;
  int own_block = -1;
};
constexpr Published kPublished[] = {{602714, 7414, 87, 11630, 11643, 36569},
                                    {603001, 31, 425, 36570, 36570},
                                    {604796, 19506, 29, 36578, 36616},
                                    {607177, 5580, 8, 7600, 7610},
                                    {608335, 7419, 57, 11630, 11643, 36710},
                                    {609168, 13, 45, 9463, 9463},
                                    {610297, 13, 9, 2603, 2603},
                                    {610902, 14848, 69, 3763, 3790, 36764},
                                    {612877, 19519, 79, 36578, 36615, 36794}};

// Written as the published file is.
std::string text_of(const Published& request) {
  std::string blocks;
  for (int block = request.first_block; block <= request.last_block; ++block)
    blocks += fmt::format("{}{}", blocks.empty() ? "" : ", ", block);
  if (request.own_block >= 0) blocks += fmt::format(", {}", request.own_block);
  return fmt::format(R"({{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [{}]}})",
                     request.timestamp, request.input, request.output, blocks) +
         "\n";
}

TEST(TraceFile, RequestsOfThePublishedMooncakeTraceAreReadAndShareTheirBlocks) {
  std::string text;
  for (const Published& request : kPublished) text += text_of(request);
  const Result<Trace> trace = parse_trace(text, "published");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), std::size(kPublished));
  for (std::size_t i = 0; i < std::size(kPublished); ++i) {
    EXPECT_EQ(trace->requests[i].arrival_s, kPublished[i].timestamp / 1e3);
    EXPECT_EQ(trace->requests[i].prompt_tokens, kPublished[i].input);
    EXPECT_EQ(trace->requests[i].output_tokens, kPublished[i].output);
  }
  EXPECT_EQ(common(tokens_of(*trace, 0), tokens_of(*trace, 4)), 14u * 512);
  EXPECT_EQ(common(tokens_of(*trace, 2), tokens_of(*trace, 8)), 38u * 512);
  SimulationConfig config;
  config.kv_tokens = 1 << 17;
  config.scheduler = {16, 2048, 1 << 17, 100};
  const Report report = simulate(*trace, config).value();
  EXPECT_EQ(report.finished, 9);
  EXPECT_EQ(report.hit_tokens, (14 + 38) * 512);
}

TEST(TraceFile, ErrorsNameTheLine) {
  const auto message = [](const std::string& text) {
    const Result<Trace> trace = parse_trace(text, "t");
    return trace.ok() ? std::string("accepted") : trace.error().message;
  };
  const std::string good = R"({"prompt": [[1, 4]], "max_tokens": 2})"
                           "\n";
  EXPECT_EQ(message(good), "accepted");
  EXPECT_NE(message(good + "{").find("line 2"), std::string::npos);
  for (const char* bad :
       {R"({"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [5, 6]})",
        R"({"timestamp": 0, "input_length": 1100, "hash_ids": [5, 6, 7]})",
        R"({"timestamp": -1, "input_length": 1, "output_length": 7, "hash_ids": [5]})",
        R"({"timestamp": 0, "input_length": 1e3, "output_length": 7, "hash_ids": [5, 6]})",
        R"({"prompt": [[1, 0]], "max_tokens": 2})", R"({"prompt": [[1]], "max_tokens": 2})",
        R"({"prompt": [], "max_tokens": 2})", R"({"prompt": [[1, 4]]})",
        R"({"prompt": [[-1, 4]], "max_tokens": 2})", R"({"prompt": [[1, 4]], "ids": [1], "max_tokens": 2})",
        R"({"ids": [], "max_tokens": 2})", R"({"ids": [1.5], "max_tokens": 2})",
        R"({"ids": [1], "max_tokens": 2, "output_tokens": 3})",
        R"({"ids": [1], "max_tokens": 2, "max_token": 3})", R"([1])",
        R"({"ids": [[[[[[1]]]]]], "max_tokens": 2})", R"({"ids": [1], "max_tokens": 18446744073709551615})",
        ""}) {
    EXPECT_NE(message(bad), "accepted") << bad;
  }
  EXPECT_NE(message(R"({"ids": [1], "max_tokens": 2, "max_token": 3})").find("max_tokens"),
            std::string::npos);
}

TEST(TraceFile, OwnFormatComesBackAsItWas) {
  SyntheticSpec spec;
  spec.requests = 300;
  spec.aborts = spec.refusals = spec.slow = 0.2;
  Trace trace = make_trace(spec, 3);
  TraceRequest literal;
  literal.arrival_s = 1e9;
  const std::vector<std::int32_t> ids = {5, 0, 2147483647};
  add_request(trace, literal, std::vector<Segment>{{add_literal(trace, ids), 3}});
  trace.requests[7].space = 4;
  const Result<Trace> again = parse_trace(to_text(trace), "again");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(to_text(*again), to_text(trace));
  ASSERT_EQ(again->requests.size(), trace.requests.size());
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    EXPECT_EQ(tokens_of(*again, i), tokens_of(trace, i));
    EXPECT_EQ(again->requests[i].faults, trace.requests[i].faults);
    EXPECT_EQ(again->requests[i].arrival_s, trace.requests[i].arrival_s);
  }
  EXPECT_EQ(again->requests[7].space, 4u);
}

class Kinds : public ::testing::TestWithParam<std::string> {};

TEST_P(Kinds, EqualSeedsGiveEqualTracesWithinTheirLimits) {
  const Result<SyntheticSpec> spec = parse_synthetic(GetParam() + ":requests=2000,rate=10,context=3000");
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  const Trace trace = make_trace(*spec, 11);
  EXPECT_EQ(to_text(trace), to_text(make_trace(*spec, 11)));
  EXPECT_NE(to_text(trace), to_text(make_trace(*spec, 12)));
  ASSERT_EQ(trace.requests.size(), 2000u);
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    EXPECT_GE(request.prompt_tokens, 1);
    EXPECT_LE(request.output_tokens, request.max_tokens);
    EXPECT_LE(request.prompt_tokens + request.max_tokens, 3000);
    if (i > 0) {
      EXPECT_GE(request.arrival_s, trace.requests[i - 1].arrival_s);
    }
  }
  // The rate is what was asked for, within what chance and the tails of conversations do.
  const double seconds = trace.requests.back().arrival_s - trace.requests.front().arrival_s;
  EXPECT_GT(2000 / seconds, 2.0);
  EXPECT_LT(2000 / seconds, 30.0);
}

TEST_P(Kinds, PromptsShareWhatTheirSegmentsShare) {
  const Result<SyntheticSpec> spec = parse_synthetic(GetParam() + ":requests=200");
  const Trace trace = make_trace(*spec, 5);
  std::int64_t shared = 0;
  for (std::size_t a = 0; a < 60; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      std::size_t expected = 0;
      const std::span<const Segment> left = trace.prompt(trace.requests[a]);
      const std::span<const Segment> right = trace.prompt(trace.requests[b]);
      for (std::size_t s = 0; s < std::min(left.size(), right.size()); ++s) {
        if (left[s].content != right[s].content) break;
        expected += static_cast<std::size_t>(std::min(left[s].tokens, right[s].tokens));
        if (left[s].tokens != right[s].tokens) break;
      }
      EXPECT_EQ(common(tokens_of(trace, a), tokens_of(trace, b)), expected) << a << " " << b;
      shared += static_cast<std::int64_t>(expected);
    }
  }
  EXPECT_GT(shared, 1000);
}

INSTANTIATE_TEST_SUITE_P(Synthetic, Kinds, ::testing::Values("shared", "chat", "agents", "bursts", "mix"));

TEST(Synthetic, SpecsAreReadWhole) {
  const Result<SyntheticSpec> spec = parse_synthetic("agents:requests=7,rate=2.5,aborts=0.25");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->kind, TrafficKind::agents);
  EXPECT_EQ(spec->requests, 7);
  EXPECT_EQ(spec->rate, 2.5);
  EXPECT_EQ(spec->aborts, 0.25);
  EXPECT_EQ(spec->slow, SyntheticSpec().slow);
  EXPECT_EQ(parse_synthetic("chat")->kind, TrafficKind::chat);
  for (const char* bad : {"", "chats", "chat:", "chat:requests", "chat:requests=", "chat:requests=0",
                          "chat:requests=1.5", "chat:rate=-1", "chat:aborts=2", "chat:request=5",
                          "chat:rate=nan", "mix:requests=3,requests=4", "chat:rate=1,prompt=9,rate=1"}) {
    const Result<SyntheticSpec> parsed = parse_synthetic(bad);
    if (std::string(bad) == "chat:") {
      EXPECT_TRUE(parsed.ok());
      continue;
    }
    EXPECT_FALSE(parsed.ok()) << bad;
  }
}

TEST(Synthetic, FaultsComeInTheirShares) {
  const Trace trace = make_trace(*parse_synthetic("mix:requests=4000,aborts=0.1,refusals=0.05,slow=0.2"), 1);
  int aborts = 0;
  int refusals = 0;
  int slow = 0;
  std::set<std::int32_t> when;
  for (const TraceRequest& request : trace.requests) {
    aborts += request.faults.abort_after != kNever ? 1 : 0;
    refusals += request.faults.refuse_after != kNever ? 1 : 0;
    slow += request.faults.read_tokens_s > 0 ? 1 : 0;
    when.insert(request.faults.abort_after);
  }
  EXPECT_NEAR(aborts, 400, 80);
  EXPECT_NEAR(refusals, 200, 60);
  EXPECT_NEAR(slow, 800, 100);
  EXPECT_GT(when.size(), 30u);
  EXPECT_TRUE(when.contains(0));
}

}  // namespace
}  // namespace quire::simulate
