// Test only: the golden data of a tiny model, and running requests through an engine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/golden_dir.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "quire/engine.h"

namespace quire::engine::testing {

struct GoldenCase {
  std::vector<std::int32_t> tokens;  // [n]
  std::vector<float> logprobs;       // [n - 1]
  std::vector<std::int32_t> argmax;  // [n]
  std::vector<float> margin;         // [n]
  std::vector<std::int32_t> greedy;
  std::vector<float> greedy_margin;
};

struct Golden {
  std::string path;  // of the model; empty: no golden data here
  float logit_std = 0.0f;
  std::vector<GoldenCase> cases;
};

template <class T>
std::vector<T> values_of(const std::map<std::string, checkpoint::TensorInfo>& tensors,
                         const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return {};
  std::vector<T> values(static_cast<std::size_t>(found->second.bytes) / sizeof(T));
  std::memcpy(values.data(), found->second.data, values.size() * sizeof(T));
  return values;
}

// `folder`: "models/llama". An empty path when the data is not there.
inline Golden read_golden(const std::string& folder) {
  Golden golden;
  const std::string root = quire::testing::golden_dir();
  if (root.empty()) return golden;
  auto file = checkpoint::MappedFile::open(root + "/" + folder + "/golden.safetensors");
  if (!file.ok()) return golden;
  auto list = checkpoint::parse_safetensors(file->bytes(), "golden.safetensors");
  EXPECT_TRUE(list.ok()) << list.error().message;
  std::map<std::string, checkpoint::TensorInfo> tensors;
  for (const checkpoint::TensorInfo& tensor : *list) tensors[tensor.name] = tensor;
  golden.path = root + "/" + folder;
  golden.logit_std = values_of<float>(tensors, "logit_std").at(0);
  for (int i = 0; tensors.contains("case" + std::to_string(i) + ".tokens"); ++i) {
    const std::string name = "case" + std::to_string(i) + ".";
    golden.cases.push_back(
        {values_of<std::int32_t>(tensors, name + "tokens"), values_of<float>(tensors, name + "logprobs"),
         values_of<std::int32_t>(tensors, name + "argmax"), values_of<float>(tensors, name + "margin"),
         values_of<std::int32_t>(tensors, name + "greedy"),
         values_of<float>(tensors, name + "greedy_margin")});
  }
  return golden;
}

struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<Scored> scored;
  std::vector<TokenLogprob> logprobs;
  Output last;  // the output with the finish
};

// For tiny models: several chunks and pages a prompt, and room for a handful of requests.
inline Options tiny_options() {
  Options options;
  options.max_context = 256;
  options.max_running = 6;
  options.chunk_tokens = 24;
  options.page_size = 16;
  options.kv_memory_bytes = 8 << 20;
  options.threads = 2;
  return options;
}

inline std::unique_ptr<Engine> open_engine(const std::string& path, const Options& options) {
  auto engine = Engine::open(path, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return engine.ok() ? std::move(*engine) : nullptr;
}

// Takes what the engine gives until it has nothing to do; checks that nothing is left behind.
inline std::map<RequestId, Answer> drain(Engine& engine) {
  std::map<RequestId, Answer> answers;
  std::vector<Output> outputs;
  while (engine.step(outputs)) {
    for (Output& output : outputs) {
      Answer& answer = answers[output.id];
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      answer.scored.insert(answer.scored.end(), output.scored.begin(), output.scored.end());
      answer.logprobs.insert(answer.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      if (output.finish != Finish::none) answer.last = output;
    }
    outputs.clear();
  }
  EXPECT_EQ(engine.audit(), std::vector<std::string>{});
  EXPECT_EQ(engine.stats().pages_in_use, engine.stats().pages_cached);
  return answers;
}

inline RequestId submit(Engine& engine, Request request) {
  auto id = engine.submit(std::move(request));
  EXPECT_TRUE(id.ok()) << id.error().message;
  return id.ok() ? *id : 0;
}

// All requests as one continuous batch, answers in their order.
inline std::vector<Answer> run_all(Engine& engine, const std::vector<Request>& requests) {
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(submit(engine, request));
  std::map<RequestId, Answer> answers = drain(engine);
  std::vector<Answer> ordered;
  for (const RequestId id : ids) ordered.push_back(answers[id]);
  return ordered;
}

inline void expect_same_tokens(const std::vector<Answer>& a, const std::vector<Answer>& b,
                               const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].tokens, b[i].tokens) << what << " request " << i;
}

inline Request score_request(const std::vector<std::int32_t>& tokens, std::int32_t top = 0) {
  Request request;
  request.prompt = tokens;
  request.score = true;
  request.answer = false;
  request.score_top = top;
  return request;
}

inline Request greedy_request(const std::vector<std::int32_t>& tokens, std::int32_t max_tokens) {
  Request request;
  request.prompt = tokens;
  request.max_tokens = max_tokens;
  return request;
}

}  // namespace quire::engine::testing
