#include "simulate/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "simulate/shrink.h"
#include "simulate/synthetic.h"
#include "simulate/trace_file.h"

namespace quire::simulate {
namespace {

SimulationConfig small(std::int32_t page_tokens, std::int64_t kv_tokens) {
  SimulationConfig config;
  config.page_tokens = page_tokens;
  config.kv_tokens = kv_tokens;
  config.scheduler = {16, 256, 2048, 100000};
  config.audit_every = 50;
  return config;
}

SyntheticSpec faulty(std::int32_t requests) {
  SyntheticSpec spec;
  spec.requests = requests;
  spec.rate = 20;
  spec.prompt = 100;
  spec.message = 20;
  spec.output = 15;
  spec.context = 1024;
  spec.aborts = 0.1;
  spec.refusals = 0.1;
  spec.slow = 0.1;
  return spec;
}

TEST(Simulate, ARequestAloneTakesWhatTheModelSays) {
  Trace trace;
  TraceRequest request;
  request.arrival_s = 5.0;
  request.max_tokens = request.output_tokens = 3;
  add_request(trace, request, std::vector<Segment>{{1, 100}});
  SimulationConfig config = small(16, 4096);
  config.scheduler.chunk_tokens = 64;
  config.device = {{{1, 1.001}, {101, 1.101}}, 0.099, 0.01, 0.0};
  const Report report = simulate(trace, config).value();
  // Two chunks, then two decode steps: tokens at 2.199, 4.309 and 6.429 s.
  EXPECT_EQ(report.finished, 1);
  EXPECT_EQ(report.computed_tokens, 100);
  EXPECT_EQ(report.output_tokens, 3);
  EXPECT_NEAR(report.ttft_s.p50, 2.199, 0.03);
  EXPECT_NEAR(report.seconds, 2.199 + (1.1 + 1.01) + (1.1 + 1.02), 1e-9);
  EXPECT_NEAR(report.busy_s, report.seconds, 1e-9);
  EXPECT_EQ(report.waiting_s.p50, 0.0);
  EXPECT_EQ(report.pages_peak, std::vector<std::int64_t>{7});
}

TEST(Simulate, FaultsTinyPoolsAndAllPageSizesKeepEveryRule) {
  for (const std::int32_t page : {1, 7, 16, 64, 256}) {
    for (const std::int64_t tokens : {2048, 4096, 30000}) {
      for (const bool overlap : {true, false}) {
        SCOPED_TRACE(::testing::Message()
                     << "page " << page << " tokens " << tokens << " overlap " << overlap);
        SimulationConfig config = small(page, tokens);
        config.overlap = overlap;
        if (page == 7) config.groups.push_back({"window", kv::Keep::window, 100});
        const Trace trace = make_trace(faulty(400), static_cast<std::uint64_t>(page) + 100);
        const Report report = simulate(trace, config).value();
        EXPECT_EQ(report.violations, std::vector<std::string>());
        EXPECT_EQ(report.finished + report.refused + report.aborted, 400);
        EXPECT_GT(report.aborted, 10);
        EXPECT_GT(report.refusals_injected, 10);
        EXPECT_GT(report.finished, 200);
      }
    }
  }
}

TEST(Simulate, EqualRunsGiveEqualReports) {
  SyntheticSpec spec = faulty(500);
  spec.output = 100;
  const Trace trace = make_trace(spec, 9);
  const SimulationConfig config = small(16, 2048);
  const Report first = simulate(trace, config).value();
  const Report second = simulate(trace, config).value();
  EXPECT_EQ(to_text(first), to_text(second));
  EXPECT_GT(first.retractions, 0);
  EXPECT_NE(to_text(first), to_text(simulate(make_trace(spec, 10), config).value()));
}

TEST(Simulate, TheTreeHitsAtLeastWhatWholePagesWouldAndMissesAreExplained) {
  for (const char* kind : {"shared", "chat", "agents", "bursts", "mix"}) {
    for (const std::int32_t page : {1, 16, 64, 256}) {
      SCOPED_TRACE(::testing::Message() << kind << " page " << page);
      const SyntheticSpec spec =
          *parse_synthetic(std::string(kind) + ":requests=400,rate=50,prompt=200,context=1500");
      SimulationConfig config = small(page, 40000);
      config.audit_every = 1000;
      const Report report = simulate(make_trace(spec, 3), config).value();
      EXPECT_EQ(report.violations, std::vector<std::string>());
      EXPECT_GT(report.hit_tokens, report.prompt_tokens / 5);
      // With pages of one token both are alike, and the other one may share answers while they grow.
      if (page > 1) {
        EXPECT_GE(report.hit_tokens, report.aligned_hit_tokens);
      }
      // What hit was not computed; at full pages' ends nothing is copied.
      EXPECT_EQ(report.computed_tokens + report.hit_tokens, report.prompt_tokens);
      EXPECT_EQ(report.copies > 0, page > 1);
      std::int64_t explained = 0;
      for (const std::int64_t count : report.why_miss) explained += count;
      EXPECT_EQ(explained, 400);
      config.scheduler.cache.enabled = false;
      const Report off = simulate(make_trace(spec, 3), config).value();
      EXPECT_EQ(off.hit_tokens, 0);
      EXPECT_EQ(off.computed_tokens, off.prompt_tokens);
    }
  }
}

// However small the cache: a partial page, and the page that a copy came from, keep nothing from those that
// would have been of more use.
TEST(Simulate, UnderPressureTheTreeStillHitsWhatWholePagesWould) {
  for (const char* kind : {"shared", "chat", "agents", "bursts", "mix"}) {
    for (const std::uint64_t seed : {1, 2}) {
      const Trace trace = make_trace(*parse_synthetic(std::string(kind) + ":requests=500,rate=2"), seed);
      for (const std::int32_t page : {16, 64, 256}) {
        for (const std::int64_t tokens : {8192, 12288, 24576}) {
          SimulationConfig config = small(page, tokens);
          config.scheduler = {16, 2048, 1 << 17, 100000};
          config.audit_every = 0;
          const Report report = simulate(trace, config).value();
          EXPECT_EQ(report.violations, std::vector<std::string>());
          EXPECT_GE(report.hit_tokens, report.aligned_hit_tokens)
              << kind << " seed " << seed << " page " << page << " tokens " << tokens;
        }
      }
    }
  }
}

TEST(Simulate, SpacesShareNothing) {
  const auto hits = [](std::uint32_t second_space) {
    Trace trace;
    for (std::uint32_t i = 0; i < 2; ++i) {
      TraceRequest request;
      request.arrival_s = i * 100.0;
      request.output_content = i;
      request.space = i * second_space;
      add_request(trace, request, std::vector<Segment>{{7, 90}, {8 + i, 10}});
    }
    return simulate(trace, small(16, 4096))->hit_tokens;
  };
  EXPECT_EQ(hits(0), 90);
  EXPECT_EQ(hits(1), 0);
}

TEST(Simulate, SlowClientsAreDroppedAndFastOnesAreNot) {
  SyntheticSpec spec = faulty(100);
  spec.aborts = spec.refusals = 0;
  spec.output = 200;
  SimulationConfig config = small(16, 20000);
  spec.slow = 0;
  EXPECT_EQ(simulate(make_trace(spec, 1), config)->aborted, 0);
  spec.slow = 0.5;
  EXPECT_GT(simulate(make_trace(spec, 1), config)->aborted, 10);
}

// A page of the first row that has one gets an owner who never gives it back.
void leak_at(kv::PagePool& pool, const scheduler::StepPlan& plan, std::uint64_t step) {
  if (plan.step != step) return;
  for (const kv::TableUpdate& update : plan.updates) {
    const kv::Owner thief{kv::OwnerKind::transfer, 77};
    if (update.page == kPaddingPage || pool.holds(update.group, update.page, thief)) continue;
    pool.adopt(update.group, update.page, thief);
    return;
  }
}

TEST(Simulate, ALeakIsFoundAndNamesItsOwner) {
  SimulationConfig config = small(16, 30000);
  config.sabotage = [](kv::PagePool& pool, const scheduler::StepPlan& plan) { leak_at(pool, plan, 0); };
  const Report report = simulate(make_trace(faulty(60), 4), config).value();
  ASSERT_FALSE(report.violations.empty());
  EXPECT_NE(report.violations.front().find("transfer 77"), std::string::npos) << report.violations.front();
}

TEST(Shrink, AFailingTraceComesDownToTheRequestsThatMatter) {
  // The planted fault: the run fails when two requests with these answers are both in the trace.
  const Trace trace = make_trace(faulty(700), 2);
  const std::uint64_t first = trace.requests[123].output_content;
  const std::uint64_t second = trace.requests[600].output_content;
  const Fails fails = [&](const Trace& part) {
    int seen = 0;
    for (const TraceRequest& request : part.requests)
      seen += request.output_content == first || request.output_content == second ? 1 : 0;
    return seen == 2;
  };
  const Shrunk shrunk = shrink(trace, fails, 1000);
  ASSERT_EQ(shrunk.trace.requests.size(), 2u);
  EXPECT_LT(shrunk.trials, 200);
  EXPECT_EQ(shrunk.trace.requests[0].faults, Faults{});
  EXPECT_EQ(shrunk.trace.requests[0].output_tokens, 1);
  // What is left is a trace file that fails in the same way.
  const Trace again = parse_trace(to_text(shrunk.trace), "shrunk").value();
  EXPECT_TRUE(fails(again));
}

TEST(Shrink, APlantedFaultInTheSimulationShrinksToItsRequest) {
  // Harm is done when a prompt chunk ends at exactly this length: a request of the trace has it.
  const Trace trace = make_trace(faulty(300), 6);
  SimulationConfig config = small(16, 30000);
  config.scheduler.chunk_tokens = 2048;
  const std::int32_t length = trace.requests[150].prompt_tokens;
  config.sabotage = [length](kv::PagePool& pool, const scheduler::StepPlan& plan) {
    for (const scheduler::PlanRow& row : plan.rows)
      if (row.kind == scheduler::RowKind::extend && row.visible.tokens == length)
        leak_at(pool, plan, plan.step);
  };
  const Fails fails = [&](const Trace& part) { return !simulate(part, config)->violations.empty(); };
  ASSERT_TRUE(fails(trace));
  const Shrunk shrunk = shrink(trace, fails, 500);
  ASSERT_EQ(shrunk.trace.requests.size(), 1u);
  EXPECT_EQ(shrunk.trace.requests[0].prompt_tokens, length);
}

// Limits that are not used cost no memory, and change nothing.
TEST(Simulate, ALongContextAndABigPoolCostNothingUnlessUsed) {
  const Trace trace = make_trace(faulty(30), 5);
  SimulationConfig config = small(16, 1 << 20);
  config.scheduler.max_running = 64;
  config.scheduler.max_context = 1 << 21;
  const Report modest = simulate(trace, config).value();
  EXPECT_EQ(modest.violations, std::vector<std::string>());
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  config.scheduler.max_context = 1 << 26;  // 2^22 entries a slot, 1 GiB of table for all of them
  config.kv_tokens = 1 << 27;              // 1 GiB of stamps
  const Report roomy = simulate(trace, config).value();
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(roomy.violations, std::vector<std::string>());
  EXPECT_EQ(roomy.finished, modest.finished);
  EXPECT_EQ(roomy.output_tokens, modest.output_tokens);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 512 << 10) << "KiB";
}

// The number in the message is the least that works.
TEST(Simulate, TooFewTokensOfCacheAreRefusedWithTheLeast) {
  const Trace trace = make_trace(faulty(3), 5);
  for (const std::int32_t page : {1, 16, 256}) {
    for (const bool window : {false, true}) {
      SimulationConfig config = small(page, 1);
      if (window) config.groups.push_back({"window", kv::Keep::window, 100});
      const Result<Report> refused = simulate(trace, config);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, Code::bad_input);
      const std::string& message = refused.error().message;
      const std::size_t flag = message.find("--kv-tokens ");
      ASSERT_NE(flag, std::string::npos) << message;
      EXPECT_EQ(message.find("slab"), std::string::npos) << message;
      EXPECT_EQ(message.find("byte"), std::string::npos) << message;
      config.kv_tokens = std::stoll(message.substr(flag + 12));
      EXPECT_TRUE(simulate(trace, config).ok()) << message;
      --config.kv_tokens;
      EXPECT_FALSE(simulate(trace, config).ok()) << message;
    }
  }
}

TEST(Simulate, TheTextHasTheHitRateWithAndWithoutWholePages) {
  const Trace trace = make_trace(faulty(30), 5);
  SimulationConfig config = small(16, 30000);
  EXPECT_NE(to_text(simulate(trace, config).value()).find("alone would have hit"), std::string::npos);
  config.groups.push_back({"window", kv::Keep::window, 100});
  const Report report = simulate(trace, config).value();
  const double rate =
      100.0 * static_cast<double>(report.hit_tokens) / static_cast<double>(report.prompt_tokens);
  const std::string text = to_text(report);
  EXPECT_NE(text.find(fmt::format("hits: {:.2f} % of the prompts", rate)), std::string::npos) << text;
  EXPECT_EQ(text.find("would have hit"), std::string::npos) << text;
}

}  // namespace
}  // namespace quire::simulate
