// KvView: answers /v1/kv. The page map is taken on the loop's thread between two steps; comparing it with the
// one before and writing JSON happen on a thread of its own, so that running answers do not wait for either.
//
// Cost. Whoever asks while a map is being taken shares it. The next one is taken kLeastPause later at the
// soonest, and so much later that taking maps is at most one part in kShare of the loop's time, whatever
// their size and however many ask.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "server/http/http.h"
#include "server/kv_view/kv_json.h"
#include "server/kv_view/load_history.h"
#include "server/kv_view/page_versions.h"
#include "server/loop/loop.h"

namespace quire::server {

class Router;

class KvView {
 public:
  static constexpr std::chrono::milliseconds kLeastPause{20};
  static constexpr int kShare = 50;

  // `loop` and `history` (may be null) outlive it. `model`: as requests name it.
  KvView(EngineLoop& loop, const LoadHistory* history, std::string model);
  // Those who still wait get 503.
  ~KvView();
  KvView(const KvView&) = delete;
  KvView& operator=(const KvView&) = delete;

  // GET /v1/kv?since=VERSION. Any thread; does not wait.
  void answer(const HttpRequest& request, std::shared_ptr<Responder> responder);

 private:
  struct Waiter {
    std::uint64_t since = 0;
    std::shared_ptr<Responder> responder;
  };
  // What the loop's thread fills in. Shared with the posted function, which may outlive this object.
  struct Snapshot {
    std::mutex mutex;
    std::condition_variable changed;
    enum class State { asked, taken, dropped } state = State::asked;
    PageMap map;
    EngineStats stats;
    Queue queue;
    Clock::duration cost{};
  };

  void run();
  bool take_snapshot();  // false: the loop has stopped
  void send_all(const std::vector<Waiter>& waiters, bool taken);

  EngineLoop& loop_;
  const LoadHistory* history_;
  std::string model_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Waiter> waiters_;
  bool stopping_ = false;
  // The view's thread only.
  std::shared_ptr<Snapshot> snapshot_ = std::make_shared<Snapshot>();
  PageVersions versions_;
  Clock::time_point next_ = Clock::now();
  std::thread thread_;
};

// GET /v1/kv, and GET /v1/backends: `backends` as `quire backends MODEL --json` prints it (empty: 404).
// `view` outlives the router.
void add_kv_routes(Router& router, KvView& view, std::string backends);

}  // namespace quire::server
