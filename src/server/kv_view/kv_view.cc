#include "server/kv_view/kv_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "server/http/router.h"

namespace quire::server {
namespace {

// A server counts up by at most 1000 / kLeastPause.count() = 50 versions a second, so one that starts a
// second after another begins above all that the other gave.
std::uint64_t first_version() { return static_cast<std::uint64_t>(unix_now()) * 1000; }

}  // namespace

KvView::KvView(EngineLoop& loop, const LoadHistory* history, std::string model)
    : loop_(loop), history_(history), model_(std::move(model)), versions_(first_version()), thread_([this] {
        run();
      }) {}

KvView::~KvView() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  send_all(waiters_, false);
}

void KvView::answer(const HttpRequest& request, std::shared_ptr<Responder> responder) {
  std::uint64_t since = 0;
  if (const auto text = request.query_value("since"); text.has_value()) {
    if (!parse_number(*text, &since)) {
      responder->send(error_answer(
          400,
          fmt::format("since={}: give the \"version\" of an earlier answer, or leave it out for all", *text),
          "invalid_value"));
      return;
    }
  }
  const std::lock_guard lock(mutex_);
  waiters_.push_back({since, std::move(responder)});
  wake_.notify_all();
}

void KvView::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !waiters_.empty(); });
    wake_.wait_until(lock, next_, [this] { return stopping_; });
    if (stopping_) return;
    // Whoever asks from here on may be told of this map too, but waits for the next: theirs must not be older
    // than their question.
    const std::vector<Waiter> waiters = std::exchange(waiters_, {});
    lock.unlock();
    send_all(waiters, take_snapshot());
    lock.lock();
  }
}

bool KvView::take_snapshot() {
  // A function that the loop drops has not run: its last copy says so.
  struct Task {
    explicit Task(std::shared_ptr<Snapshot> target) : snapshot(std::move(target)) {}
    std::shared_ptr<Snapshot> snapshot;
    bool ran = false;  // the loop's thread only, or nobody
    ~Task() {
      if (ran) return;
      const std::lock_guard lock(snapshot->mutex);
      snapshot->state = Snapshot::State::dropped;
      snapshot->changed.notify_all();
    }
  };
  {
    const std::lock_guard lock(snapshot_->mutex);
    snapshot_->state = Snapshot::State::asked;
  }
  loop_.post([task = std::make_shared<Task>(snapshot_)](Session& session) {
    Snapshot& snapshot = *task->snapshot;
    task->ran = true;
    const Clock::time_point begin = Clock::now();
    const std::lock_guard lock(snapshot.mutex);
    const Engine& engine = session.engine();
    engine.page_map(snapshot.map);
    snapshot.stats = engine.stats();
    snapshot.queue = engine.queue();
    snapshot.cost = Clock::now() - begin;
    snapshot.state = Snapshot::State::taken;
    snapshot.changed.notify_all();
  });
  std::unique_lock lock(snapshot_->mutex);
  snapshot_->changed.wait(lock, [this] { return snapshot_->state != Snapshot::State::asked; });
  if (snapshot_->state == Snapshot::State::dropped) return false;
  versions_.take(snapshot_->map);
  next_ = Clock::now() + std::max<Clock::duration>(kLeastPause, snapshot_->cost * (kShare - 1));
  return true;
}

void KvView::send_all(const std::vector<Waiter>& waiters, bool taken) {
  if (!taken) {
    for (const Waiter& waiter : waiters)
      waiter.responder->send(error_answer(503, "the server is shutting down", "shutting_down"));
    return;
  }
  const std::vector<LoadSample> history =
      history_ != nullptr ? history_->samples() : std::vector<LoadSample>();
  const KvFacts facts{.model = model_,
                      .info = loop_.info(),
                      .pages = versions_,
                      .stats = snapshot_->stats,
                      .queue = snapshot_->queue,
                      .time = unix_now()};
  for (const Waiter& waiter : waiters)
    if (!waiter.responder->closed()) waiter.responder->send({.body = kv_json(facts, waiter.since, history)});
}

void add_kv_routes(Router& router, KvView& view, std::string backends) {
  router.add("GET", "/v1/kv", RouteAccess::keyed,
             [&view](const HttpRequest& request, std::shared_ptr<Responder> responder) {
               view.answer(request, std::move(responder));
             });
  if (backends.empty()) return;
  router.add(
      "GET", "/v1/backends", RouteAccess::keyed,
      [backends = std::move(backends)](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        responder->send({.body = backends});
      });
}

}  // namespace quire::server
