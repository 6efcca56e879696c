// How the engine behaves: what a result may not depend on, how requests end, limits, and what is given back.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "engine/golden_case.h"

namespace quire::engine::testing {
namespace {

constexpr std::int64_t kLlamaKvBytes = 2 * 2 * 128 * 2;  // per token: layers, K and V, one head of 128, bf16

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    golden_ = read_golden("models/llama");
    if (golden_.path.empty()) FAIL() << "no golden data";
  }
  static Options small() {
    Options options;
    options.max_context = 256;
    options.max_running = 6;
    options.chunk_tokens = 16;
    options.page_size = 8;
    options.kv_memory_bytes = 4 << 20;
    options.threads = 2;
    return options;
  }
  // Requests of every kind: lengths around pages and chunks, greedy and random, scores in between.
  std::vector<Request> mixed(int count) const {
    std::vector<Request> requests;
    std::mt19937 random(7);
    for (int i = 0; i < count; ++i) {
      const std::size_t length = 1 + random() % 70;
      std::vector<std::int32_t> prompt;
      for (std::size_t t = 0; t < length; ++t) prompt.push_back(static_cast<std::int32_t>(random() % 250));
      Request request = i % 5 == 4 ? score_request(prompt, 3) : greedy_request(prompt, 1 + i * 7 % 29);
      if (i % 2 == 1) {
        request.sampling.temperature = 0.9f;
        request.sampling.top_p = 0.95f;
        request.sampling.repetition_penalty = 1.1f;
        request.sampling.seed = 42;
        request.sequence_index = static_cast<std::uint64_t>(i);
      }
      requests.push_back(std::move(request));
    }
    return requests;
  }
  Golden golden_;
};

void expect_same(const std::vector<Answer>& a, const std::vector<Answer>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tokens, b[i].tokens) << what << " request " << i;
    EXPECT_EQ(a[i].last.finish, b[i].last.finish) << what << " request " << i;
    ASSERT_EQ(a[i].scored.size(), b[i].scored.size()) << what << " request " << i;
    for (std::size_t t = 0; t + 1 < a[i].scored.size(); ++t) {
      EXPECT_EQ(a[i].scored[t].logprob, b[i].scored[t].logprob) << what << " request " << i << " token " << t;
      EXPECT_EQ(a[i].scored[t].top, b[i].scored[t].top) << what << " request " << i << " token " << t;
    }
  }
}

// Level schedule_invariant: the bits of a request's scores and all its tokens depend on itself only.
TEST_F(EngineTest, NothingAroundARequestChangesIt) {
  const std::vector<Request> requests = mixed(12);
  std::vector<Answer> alone;
  {
    std::unique_ptr<Engine> engine = open_engine(golden_.path, small());
    ASSERT_NE(engine, nullptr);
    ASSERT_EQ(engine->info().determinism, "schedule_invariant");
    for (const Request& request : requests) alone.push_back(run_all(*engine, {request})[0]);
  }
  struct Variant {
    std::string name;
    void (*change)(Options&);
  };
  const Variant variants[] = {
      {"together", [](Options&) {}},
      {"eager", [](Options& o) { o.graphs = false; }},
      {"no overlap", [](Options& o) { o.overlap = false; }},
      {"eager without overlap", [](Options& o) { o.graphs = o.overlap = false; }},
      {"page 1", [](Options& o) { o.page_size = 1; }},
      {"page 64, chunk 5", [](Options& o) { o.page_size = 64, o.chunk_tokens = 5; }},
      {"chunk 1", [](Options& o) { o.chunk_tokens = 1; }},
      {"one thread, two running", [](Options& o) { o.threads = 1, o.max_running = 2; }},
  };
  for (const Variant& variant : variants) {
    Options options = small();
    variant.change(options);
    std::unique_ptr<Engine> engine = open_engine(golden_.path, options);
    ASSERT_NE(engine, nullptr) << variant.name;
    expect_same(run_all(*engine, requests), alone, variant.name);
    EXPECT_EQ(engine->stats().replayed_steps > 0, options.graphs) << variant.name;
  }
}

TEST_F(EngineTest, RetractionChangesNothing) {
  // Short prompts with long answers: all are admitted, then they outgrow the pool.
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(greedy_request({1 + i, 20, 30 + i}, 60 + i));
    requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    requests.back().sampling.frequency_penalty = 0.2f;
    requests.back().sequence_index = static_cast<std::uint64_t>(i);
  }
  std::unique_ptr<Engine> roomy = open_engine(golden_.path, small());
  ASSERT_NE(roomy, nullptr);
  const std::vector<Answer> expected = run_all(*roomy, requests);
  EXPECT_EQ(roomy->stats().retractions, 0);
  Options options = small();
  options.page_size = 4;
  // Room for one long request and little more.
  options.kv_memory_bytes = 120 * kLlamaKvBytes;
  std::unique_ptr<Engine> tight = open_engine(golden_.path, options);
  ASSERT_NE(tight, nullptr);
  expect_same(run_all(*tight, requests), expected, "tight");
  EXPECT_GT(tight->stats().retractions, 0);
}

// One thread at a time is the rule for engine, scheduler and prefix cache. Under the thread sanitizer this
// shows that nothing else is shared: the device's threads run meanwhile.
TEST_F(EngineTest, ThreadsMayTakeTurns) {
  std::unique_ptr<Engine> engine = open_engine(golden_.path, small());
  ASSERT_NE(engine, nullptr);
  const std::vector<Request> requests = mixed(8);
  const std::vector<Answer> expected = run_all(*engine, requests);
  engine->clear_prefix_cache();
  std::mutex mutex;
  std::map<RequestId, std::size_t> place;
  std::vector<std::vector<std::int32_t>> tokens(requests.size());
  const auto serve = [&](std::size_t first) {
    for (std::size_t i = first; i < requests.size(); i += 2) {
      const std::lock_guard lock(mutex);
      place[submit(*engine, requests[i])] = i;
    }
    for (bool more = true; more;) {
      const std::lock_guard lock(mutex);
      std::vector<Output> outputs;
      more = engine->step(outputs);
      for (const Output& output : outputs) {
        std::vector<std::int32_t>& answer = tokens[place.at(output.id)];
        answer.insert(answer.end(), output.tokens.begin(), output.tokens.end());
      }
    }
  };
  std::thread one(serve, 0);
  std::thread other(serve, 1);
  one.join();
  other.join();
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(tokens[i], expected[i].tokens) << i;
  EXPECT_GT(engine->kv_events(0).events.size(), 0u);
  EXPECT_EQ(engine->audit(), std::vector<std::string>{});
}

TEST_F(EngineTest, FinishesSayWhy) {
  std::unique_ptr<Engine> engine = open_engine(golden_.path, small());
  ASSERT_NE(engine, nullptr);
  const GoldenCase& c = golden_.cases[1];
  Request stopping = greedy_request(c.tokens, 12);
  stopping.stop_tokens = {c.greedy[5]};
  Request open_ended = greedy_request(c.tokens, 0);
  const std::vector<Answer> answers = run_all(*engine, {greedy_request(c.tokens, 12), stopping, open_ended});
  EXPECT_EQ(answers[0].last.finish, Finish::length);
  EXPECT_EQ(answers[0].last.prompt_tokens, static_cast<std::int32_t>(c.tokens.size()));
  EXPECT_EQ(answers[0].last.completion_tokens, 12);
  EXPECT_GT(answers[0].last.first_token_s, 0.0);
  EXPECT_GE(answers[0].last.finish_s, answers[0].last.first_token_s);
  EXPECT_EQ(answers[1].last.finish, Finish::stop);
  const auto first = std::find(answers[0].tokens.begin(), answers[0].tokens.end(), c.greedy[5]);
  EXPECT_EQ(answers[1].tokens, std::vector<std::int32_t>(answers[0].tokens.begin(), first));
  EXPECT_EQ(answers[2].last.finish, Finish::context);
  EXPECT_EQ(answers[2].last.completion_tokens + answers[2].last.prompt_tokens, 256);
}

TEST_F(EngineTest, CancelAtAnyMomentGivesEverythingBack) {
  const std::vector<Request> requests = mixed(8);
  for (const bool overlap : {true, false}) {
    Options options = small();
    options.overlap = overlap;
    options.max_running = 3;
    std::unique_ptr<Engine> engine = open_engine(golden_.path, options);
    ASSERT_NE(engine, nullptr);
    for (int moment = 0; moment < 24; ++moment) {
      std::vector<RequestId> ids;
      for (const Request& request : requests) ids.push_back(submit(*engine, request));
      std::vector<Output> outputs;
      for (int s = 0; s < moment; ++s) engine->step(outputs);
      for (std::size_t i = 0; i < ids.size(); i += 2) engine->cancel(ids[i]);
      const std::map<RequestId, Answer> answers = drain(*engine);
      for (const Output& output : outputs)
        if (output.finish != Finish::none) std::erase(ids, output.id);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ASSERT_TRUE(answers.contains(ids[i])) << "moment " << moment;
        EXPECT_NE(answers.at(ids[i]).last.finish, Finish::none) << "moment " << moment;
      }
    }
  }
}

TEST_F(EngineTest, TwoEnginesInOneProcess) {
  const GoldenCase& c = golden_.cases[0];
  std::unique_ptr<Engine> a = open_engine(golden_.path, small());
  std::unique_ptr<Engine> b = open_engine(golden_.path, small());
  ASSERT_TRUE(a != nullptr && b != nullptr);
  submit(*a, greedy_request(c.tokens, 12));
  submit(*b, greedy_request(c.tokens, 12));
  std::vector<Output> from_a, from_b;
  while (a->step(from_a) | b->step(from_b)) continue;
  std::vector<std::int32_t> tokens_a, tokens_b;
  for (const Output& o : from_a) tokens_a.insert(tokens_a.end(), o.tokens.begin(), o.tokens.end());
  for (const Output& o : from_b) tokens_b.insert(tokens_b.end(), o.tokens.begin(), o.tokens.end());
  EXPECT_EQ(tokens_a, tokens_b);
  EXPECT_EQ(tokens_a.size(), 12u);
}

TEST_F(EngineTest, RequestsThatCannotRunAreRefusedWithNumbers) {
  Options options = small();
  std::unique_ptr<Engine> engine = open_engine(golden_.path, options);
  ASSERT_NE(engine, nullptr);
  const auto refusal = [&](Request request) {
    auto id = engine->submit(std::move(request));
    EXPECT_FALSE(id.ok());
    return id.ok() ? Error{} : id.error();
  };
  EXPECT_EQ(refusal({}).code, Code::bad_input);
  // The limit is 256, the model's own 2048: what may be raised, and what may not.
  const auto over = [&](std::size_t tokens) {
    return refusal(greedy_request(std::vector<std::int32_t>(tokens, 1), 4));
  };
  EXPECT_EQ(over(257).code, Code::bad_input);
  EXPECT_EQ(over(257).message,
            "a prompt of 257 tokens is over the context of 256: raise the limit (--max-context 257, "
            "the model has 2048) or shorten it by 1");
  EXPECT_NE(over(2048).message.find("--max-context 2048, the"), std::string::npos) << over(2048).message;
  EXPECT_EQ(over(2049).message,
            "a prompt of 2049 tokens is over the context of 256: with the model's own (--max-context "
            "2048) shorten it by 1, or shorten it by 1793");
  EXPECT_NE(refusal(greedy_request({1, 259}, 4)).message.find("0 to 258"), std::string::npos);
  Request hot = greedy_request({1}, 4);
  hot.sampling.temperature = std::nanf("");
  EXPECT_EQ(refusal(hot).code, Code::bad_input);
  Request top = score_request({1, 2}, 1000);
  EXPECT_NE(refusal(top).message.find("128"), std::string::npos);
  // The whole context may be scored, and continued by a token.
  EXPECT_EQ(run_all(*engine, {score_request(std::vector<std::int32_t>(256, 1))})[0].scored.size(), 256u);
  EXPECT_EQ(run_all(*engine, {greedy_request(std::vector<std::int32_t>(255, 1), 0)})[0].tokens.size(), 1u);
  EXPECT_EQ(run_all(*engine, {greedy_request(std::vector<std::int32_t>(256, 1), 0)})[0].tokens.size(), 1u);

  options.max_context = 0;
  options.kv_memory_bytes = 8 << 20;
  engine = open_engine(golden_.path, options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(over(12000).message,
            "a prompt of 12000 tokens is over the context of 2048, which is the model's own: "
            "shorten it by 9952");
}

// A prompt of just the context's length has an answer of one token: the one that a longer context gives.
TEST_F(EngineTest, APromptAsLongAsTheContextIsContinuedByOneToken) {
  std::vector<std::int32_t> prompt;
  for (int t = 0; t < 40; ++t) prompt.push_back(t * 7 % 250);
  std::unique_ptr<Engine> roomy = open_engine(golden_.path, small());
  ASSERT_NE(roomy, nullptr);
  const std::vector<std::int32_t> expected = run_all(*roomy, {greedy_request(prompt, 1)})[0].tokens;
  for (const int page : {1, 4, 16}) {
    for (const int chunk : {1, 7, 16, 64}) {
      for (const bool cache : {true, false}) {
        Options options = small();
        options.max_context = 40;
        options.page_size = page;
        options.chunk_tokens = chunk;
        options.prefix_cache = cache ? "on" : "off";
        const std::string what = fmt::format("page {} chunk {} cache {}", page, chunk, cache);
        // In a pool for just one of them, too: the answer has no place in it.
        for (const bool tight : {false, true}) {
          if (tight) options.kv_memory_bytes = (40 / page + 2) * page * kLlamaKvBytes;
          std::unique_ptr<Engine> engine = open_engine(golden_.path, options);
          ASSERT_NE(engine, nullptr) << what;
          Request five = greedy_request(prompt, 5);
          five.sampling.repetition_penalty = 1.0001f;  // reads the history, which has the answer
          five.logprobs = 2;
          for (int turn = 0; turn < 2; ++turn) {  // cold and warm
            const std::vector<Answer> answers =
                run_all(*engine, {greedy_request(prompt, 0), greedy_request(prompt, 1), five});
            for (const Answer& answer : answers) EXPECT_EQ(answer.tokens, expected) << what;
            EXPECT_EQ(answers[0].last.finish, Finish::context) << what;
            EXPECT_EQ(answers[1].last.finish, Finish::length) << what;
            EXPECT_EQ(answers[2].last.finish, Finish::context) << what;
            EXPECT_EQ(answers[2].logprobs.size(), 1u) << what;
          }
        }
      }
    }
  }
}

TEST_F(EngineTest, TinyPoolsRefuseOrServe) {
  for (const int page : {1, 16, 256}) {
    for (const std::int64_t memory : {1000, 40000, 300000}) {
      Options options = small();
      options.page_size = page;
      options.kv_memory_bytes = memory;
      auto engine = Engine::open(golden_.path, options);
      if (!engine.ok()) {
        EXPECT_EQ(engine.error().code, Code::no_resources) << engine.error().message;
        EXPECT_NE(engine.error().message.find("memory"), std::string::npos) << engine.error().message;
        continue;
      }
      const auto capacity = (*engine)->info().kv_capacity_tokens;
      auto over = (*engine)->submit(greedy_request(std::vector<std::int32_t>(200, 1), 4));
      if (capacity < 200) {
        ASSERT_FALSE(over.ok()) << capacity;
        EXPECT_EQ(over.error().code, Code::no_resources);
      }
      const Answer answer = run_all(**engine, {greedy_request({1, 2, 3}, 2)})[0];
      EXPECT_EQ(answer.tokens.size(), 2u);
    }
  }
}

// Whatever cuts an answer: one that the pool cannot hold is refused, with figures that are then accepted.
TEST_F(EngineTest, AnAnswerThatThePoolCannotHoldIsRefusedWithFiguresThatWork) {
  Options options = small();
  options.max_context = 80;
  options.page_size = 8;
  options.kv_memory_bytes = 40000;
  const auto open = [&] { return open_engine(golden_.path, options); };
  auto engine = open();
  ASSERT_NE(engine, nullptr);
  const std::int64_t capacity = engine->info().kv_capacity_tokens;
  ASSERT_LT(capacity, 70);
  ASSERT_GT(capacity, 3);
  for (const std::int32_t asked : {75, 77, 78, 100}) {  // 77: what the context leaves
    const Status refused = engine->check(greedy_request({1, 2, 3}, asked));
    ASSERT_FALSE(refused.ok()) << asked;
    const std::string& message = refused.error().message;
    EXPECT_EQ(refused.error().code, Code::no_resources);
    EXPECT_FALSE(engine->submit(greedy_request({1, 2, 3}, asked)).ok());
    const std::string fewer = " new tokens or fewer (--max-tokens " + std::to_string(capacity - 2) + ")";
    EXPECT_NE(message.find(fewer), std::string::npos) << message;
    EXPECT_EQ(message.find("what the context of 80 leaves of") != std::string::npos, asked > 77) << message;
    const std::size_t at = message.find("--kv-memory ");
    ASSERT_NE(at, std::string::npos) << message;
    Options larger = options;
    larger.kv_memory_bytes = std::stoll(message.substr(at + std::strlen("--kv-memory ")));
    EXPECT_GT(larger.kv_memory_bytes, options.kv_memory_bytes);
    auto roomy = open_engine(golden_.path, larger);
    ASSERT_NE(roomy, nullptr);
    EXPECT_TRUE(roomy->check(greedy_request({1, 2, 3}, asked)).ok()) << message;
    const Answer answer = run_all(*roomy, {greedy_request({1, 2, 3}, asked)})[0];
    EXPECT_EQ(answer.last.finish, asked > 77 ? Finish::context : Finish::length) << asked;
  }
  const auto most = static_cast<std::int32_t>(capacity - 2);
  EXPECT_EQ(run_all(*engine, {greedy_request({1, 2, 3}, most)})[0].last.finish, Finish::length);
  // No length of its own: as far as it goes.
  const Answer open_end = run_all(*engine, {greedy_request({1, 2, 3}, 0)})[0];
  EXPECT_EQ(open_end.last.finish, Finish::context);
  EXPECT_EQ(open_end.tokens.size(), static_cast<std::size_t>(most));
}

TEST_F(EngineTest, AFullQueueRefusesAndSaysItsRoom) {
  Options options = small();
  options.max_waiting = 2;
  std::unique_ptr<Engine> engine = open_engine(golden_.path, options);
  ASSERT_NE(engine, nullptr);
  const auto queue = [&] { return std::pair(engine->queue().waiting, engine->queue().room); };
  EXPECT_EQ(queue(), std::pair(0, 2));
  EXPECT_TRUE(engine->submit(greedy_request({1, 2}, 2)).ok());
  EXPECT_TRUE(engine->submit(greedy_request({1, 2}, 2)).ok());
  EXPECT_EQ(queue(), std::pair(2, 0));
  const auto refused = engine->submit(greedy_request({1, 2}, 2));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::no_resources);
  EXPECT_TRUE(engine->check(greedy_request({1, 2}, 2)).ok());
  std::vector<Output> outputs;
  EXPECT_TRUE(engine->step(outputs));
  EXPECT_EQ(queue(), std::pair(0, 2));
  while (engine->step(outputs)) continue;
}

TEST_F(EngineTest, DeadlinesUnderTheClocksUnitAreRefused) {
  std::unique_ptr<Engine> engine = open_engine(golden_.path, small());
  ASSERT_NE(engine, nullptr);
  Request request = greedy_request({1, 2}, 2);
  for (const double bad : {1e-300, 9e-7, -1.0, 2e9, std::nan("")}) {
    request.deadline_s = bad;
    EXPECT_FALSE(engine->check(request).ok()) << bad;
  }
  for (const double good : {0.0, 1e-6, 1e9}) {
    request.deadline_s = good;
    EXPECT_TRUE(engine->check(request).ok()) << good;
  }
}

TEST_F(EngineTest, OptionsAreRefusedNotIgnored) {
  Options options = small();
  options.device = "cuda";
  auto engine = Engine::open(golden_.path, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, Code::bad_input);
  EXPECT_NE(engine.error().message.find("not in this build"), std::string::npos) << engine.error().message;
}

// A model whose output head holds NaN in one row of weights: every distribution is lost, and said to be.
TEST_F(EngineTest, LogitsThatAreNotFiniteEndTheRequest) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("quire_not_finite_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  std::filesystem::copy(golden_.path, folder);
  const std::string weights = (folder / "model.safetensors").string();
  std::filesystem::permissions(weights, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::int64_t at = 0;
  {
    auto file = checkpoint::MappedFile::open(weights);
    ASSERT_TRUE(file.ok());
    auto tensors = checkpoint::parse_safetensors(file->bytes(), "model.safetensors");
    ASSERT_TRUE(tensors.ok());
    for (const checkpoint::TensorInfo& tensor : *tensors)
      if (tensor.name == "lm_head.weight") at = tensor.data - file->bytes().data();
  }
  ASSERT_GT(at, 0);
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at + 7 * 2);  // a bf16 in the head's first row
  file.write("\xc0\x7f", 2).flush();
  for (const bool overlap : {true, false}) {
    Options options = small();
    options.overlap = overlap;
    std::unique_ptr<Engine> engine = open_engine(folder.string(), options);
    ASSERT_NE(engine, nullptr);
    const std::vector<Answer> answers =
        run_all(*engine, {greedy_request({1, 2, 3}, 9), score_request(std::vector<std::int32_t>(40, 5), 2)});
    for (const Answer& answer : answers) {
      EXPECT_EQ(answer.last.finish, Finish::failed);
      EXPECT_TRUE(answer.tokens.empty() && answer.scored.empty());
      EXPECT_NE(answer.last.error.find("logits at position"), std::string::npos) << answer.last.error;
      EXPECT_NE(answer.last.error.find("request"), std::string::npos) << answer.last.error;
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quire::engine::testing
