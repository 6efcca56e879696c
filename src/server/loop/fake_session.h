// A Session without a model, for tests of what stands around one: an answer of `max_tokens` tokens, one a
// step, "t0 t1 ..."; a text "bad" is refused by prepare(), "late" by submit(), "huge" there as more than the
// memory holds; one "ambiguous" fails by its guide instead of its second token. Tokens are bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "quire/session.h"

namespace quire::server {

class FakeSession final : public Session, public Engine {
 public:
  explicit FakeSession(std::int32_t room = 1 << 20) : room_(room) {}
  // How many steps may run; tests that hold it still raise it by hand. Any thread.
  std::atomic<std::int64_t> steps_allowed{std::int64_t{1} << 60};
  std::atomic<std::int64_t> running{0};
  std::atomic<int> step_ms{0};         // what a step takes
  std::atomic<bool> hold_slow{false};  // preparing a text "slow..." takes as long as this is set
  mutable std::atomic<int> prepared{0};
  // The thread that first called is the only one that may. Steps by others are counted here.
  std::atomic<int> wrong_thread{0};

  // Of each request in the order of submit(). `at` and `guides` are to be compared only.
  struct Prompt {
    std::vector<std::int32_t> ids;
    const std::int32_t* at = nullptr;
    const GuideMaker* guides = nullptr;
  };
  std::vector<Prompt> prompts() const {
    const std::lock_guard lock(mutex_);
    return prompts_;
  }

  // Session
  Engine& engine() override { return *this; }
  const GenerationDefaults& defaults() const override { return defaults_; }
  Result<RequestId> submit(const TextRequest& request) override {
    check_thread();
    if (request.text == "late") return bad_input("refused by submit");
    if (request.text == "huge") return Error{Code::no_resources, "too long for the memory"};
    const RequestId id = ++last_id_;
    live_.emplace(id, Live{request.max_tokens, 0, false, request.text == "ambiguous"});
    {
      const std::lock_guard lock(mutex_);
      prompts_.push_back({request.ids, request.ids.data(), request.guides.get()});
    }
    running = static_cast<std::int64_t>(live_.size());
    return id;
  }
  Result<std::vector<std::int32_t>> check(const TextRequest&) const override {
    return std::vector<std::int32_t>{1};
  }
  Result<TextRequest> prepare(TextRequest request) const override {
    if (request.text == "bad") return bad_input("a bad prompt");
    while (request.text.starts_with("slow") && hold_slow) std::this_thread::yield();
    ++prepared;
    if (request.ids.empty()) request.ids.assign(request.text.begin(), request.text.end());
    return request;
  }
  ToolFormat tool_format() const override { return ToolFormat::none; }
  void cancel(RequestId id) override {
    check_thread();
    if (const auto found = live_.find(id); found != live_.end()) found->second.cancelled = true;
  }
  bool step(std::vector<TextOutput>& outputs) override {
    check_thread();
    bool any = false;
    const bool compute = steps_allowed > 0;
    if (compute && !live_.empty()) --steps_allowed;
    if (step_ms > 0 && !live_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
    for (auto at = live_.begin(); at != live_.end();) {
      Live& live = at->second;
      TextOutput output;
      output.id = at->first;
      if (live.cancelled) {
        output.finish = Finish::cancelled;
      } else if (compute && live.ambiguous && live.made == 1) {
        output.finish = Finish::failed;
        output.error = "request 1: its guide gave up: too many ways";
        output.guide_problem = "too many ways";
      } else if (compute) {
        output.tokens = {live.made};
        output.text = "t" + std::to_string(live.made) + " ";
        if (++live.made == live.max_tokens) output.finish = Finish::length;
      } else {
        ++at;
        continue;
      }
      output.completion_tokens = live.made;
      any = true;
      at = output.finish == Finish::none ? std::next(at) : live_.erase(at);
      outputs.push_back(std::move(output));
    }
    running = static_cast<std::int64_t>(live_.size());
    return any;
  }
  Result<std::vector<std::int32_t>> tokenize(std::string_view, bool) const override {
    return std::vector<std::int32_t>{};
  }
  Result<std::string> detokenize(const std::vector<std::int32_t>&, bool) const override {
    return std::string();
  }
  Result<std::string> render(const std::vector<Message>&) const override { return std::string(); }

  // Engine
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return {}; }
  Result<RequestId> submit(Request) override { return bad_input("text only"); }
  Status check(const Request&) const override { return {}; }
  Queue queue() const override {
    const auto waiting = static_cast<std::int32_t>(live_.size());
    return {waiting, room_ - waiting};
  }
  bool step(std::vector<Output>&) override { return false; }
  void page_map(PageMap& map) const override { map = PageMap(); }
  std::vector<std::string> audit() override { return {}; }

 private:
  struct Live {
    std::int32_t max_tokens = 0;
    std::int32_t made = 0;
    bool cancelled = false;
    bool ambiguous = false;
  };
  void check_thread() {
    if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
    if (owner_ != std::this_thread::get_id()) ++wrong_thread;
  }

  std::int32_t room_;
  RequestId last_id_ = 0;
  std::map<RequestId, Live> live_;
  std::thread::id owner_;
  mutable std::mutex mutex_;
  std::vector<Prompt> prompts_;
  GenerationDefaults defaults_;
  EngineInfo info_;
};

}  // namespace quire::server
