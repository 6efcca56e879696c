#include "server/loop/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "server/loop/client_words.h"
#include "server/loop/loop_impl.h"

namespace quire::server {

namespace {

// How soon a session that has requests but no step to run is asked again.
constexpr std::chrono::milliseconds kAskAgain{1};
constexpr double kMostRetryAfter = 60.0;
// Takes some 50 ms to tokenise.
constexpr std::size_t kLongPrompt = 64 << 10;

bool needs_guide(const TextRequest& request) {
  return request.guides == nullptr &&
         (request.format != AnswerFormat::text || request.tool_use != ToolUse::automatic);
}

bool has_prompt(const TextRequest& request) {
  return !request.text.empty() || !request.ids.empty() || !request.conversation.empty() ||
         !request.messages.empty();
}

std::size_t prompt_bytes(const std::vector<TextRequest>& requests) {
  std::size_t bytes = 0;
  for (const TextRequest& request : requests) bytes += server::prompt_bytes(request);
  return bytes;
}

Refusal refusal_of(const Error& error) {
  const bool legal = error.code == Code::no_resources;
  return {legal ? Refusal::Why::never_fits : Refusal::Why::invalid, client_words(error.message)};
}

TextOutput cancelled_before_it_ran() {
  TextOutput output;
  output.finish = Finish::cancelled;
  return output;
}

}  // namespace

std::size_t prompt_bytes(const TextRequest& request) {
  return request.text.size() + request.conversation.size();
}

// ---- any thread ----------------------------------------------------------------------------------------

EngineLoop::Impl::Impl(std::unique_ptr<Session> session, LoopObserver* observer)
    : session_(std::move(session)), observer_(observer), last_turn_(Clock::now()) {
  thread_ = std::thread([this] { run(); });
}

EngineLoop::Impl::~Impl() { stop(); }

Ticket EngineLoop::Impl::submit(std::vector<TextRequest> requests, Sink sink) {
  QUIRE_CHECK(!requests.empty(), "a group of {} requests", requests.size());
  const Ticket ticket = next_ticket_.fetch_add(1);
  Background& background = preparer(requests);
  auto group = std::make_shared<Group>(Group{ticket, std::move(requests), std::move(sink), Clock::now()});
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      group->late = draining_;
      preparing_.emplace(ticket, false);
      ++pulse_.waiting;
      background.run([this, group] {
        prepare(*group);
        arrive(std::move(*group));
      });
      return ticket;
    }
  }
  const Refusal refusal{Refusal::Why::draining, "this server is stopping and takes no more requests"};
  group->sink({.ticket = ticket, .refusal = &refusal});
  return ticket;
}

Background& EngineLoop::Impl::preparer(const std::vector<TextRequest>& requests) {
  if (std::any_of(requests.begin(), requests.end(), needs_guide)) return prepares_guides_;
  return prompt_bytes(requests) > kLongPrompt ? prepares_long_text_ : prepares_text_;
}

void EngineLoop::Impl::prepare(Group& group) const {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || preparing_.at(group.ticket)) return;  // nobody waits for it
  }
  for (std::size_t i = 0; i < group.requests.size(); ++i) {
    TextRequest& request = group.requests[i];
    if (i > 0 && !has_prompt(request)) continue;  // a further answer
    Result<TextRequest> prepared = session_->prepare(std::move(request));
    if (!prepared.ok()) {
      group.error = prepared.error();
      return;
    }
    request = std::move(*prepared);
  }
}

void EngineLoop::Impl::arrive(Group group) {
  const std::lock_guard lock(mutex_);
  const auto found = preparing_.find(group.ticket);
  group.cancelled = found->second;
  preparing_.erase(found);
  inbox_.groups.push_back(std::move(group));
  wake_.notify_one();
}

void EngineLoop::Impl::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  if (const auto found = preparing_.find(ticket); found != preparing_.end()) {
    found->second = true;
    return;
  }
  inbox_.cancels.push_back(ticket);
  wake_.notify_one();
}

void EngineLoop::Impl::post(std::function<void(Session&)> function) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  inbox_.posts.push_back(std::move(function));
  wake_.notify_one();
}

void EngineLoop::Impl::beside(std::size_t bytes, std::function<void(const Session&)> function) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
  (bytes > kLongPrompt ? prepares_long_text_ : prepares_text_).run([this, function = std::move(function)] {
    function(*session_);
  });
}

Pulse EngineLoop::Impl::pulse() const {
  const std::lock_guard lock(mutex_);
  Pulse pulse = pulse_;
  pulse.since_turn_s = seconds(Clock::now() - last_turn_);
  pulse.draining = draining_;
  return pulse;
}

void EngineLoop::Impl::begin_drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool EngineLoop::Impl::drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto done = [this] { return stopped_ || (pulse_.unfinished == 0 && pulse_.waiting == 0); };
  if (ended_.wait_until(lock, deadline, done)) return true;
  cancel_all_ = true;
  wake_.notify_one();
  ended_.wait(lock, done);
  return false;
}

void EngineLoop::Impl::stop() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    stopping_ = true;
    wake_.notify_one();
  }
  const std::lock_guard join(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

// ---- the loop's thread -----------------------------------------------------------------------------------

void EngineLoop::Impl::run() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    if (!turn()) sleep();
  }
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return preparing_.empty(); });
  }
  take_inbox();
  taken_.posts.clear();
  cancel_everything();
  while (turn()) {
  }
  QUIRE_CHECK(places_.empty() && active_.empty(), "{} requests did not end when the loop stopped",
              unfinished());
  const std::lock_guard lock(mutex_);
  inbox_ = {};
  stopped_ = true;
  ended_.notify_all();
}

bool EngineLoop::Impl::turn() {
  take_inbox();
  apply_cancels();
  for (const auto& function : taken_.posts) function(*session_);
  taken_.posts.clear();
  admit();
  outputs_.clear();
  const Clock::time_point begin = Clock::now();
  const bool more = session_->step(outputs_);
  const Clock::time_point end = Clock::now();
  for (TextOutput& output : outputs_) deliver(output);
  if (more && observer_ != nullptr) observer_->turn(*session_, seconds(end - begin));
  publish(more || places_.empty());
  return more;
}

void EngineLoop::Impl::take_inbox() {
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    std::swap(taken_, inbox_);
    std::swap(all, cancel_all_);
    if (all) {
      for (auto& [ticket, cancelled] : preparing_) cancelled = true;
    }
  }
  for (Group& group : taken_.groups) arriving_.push_back(std::move(group));
  taken_.groups.clear();
  if (all) cancel_everything();
}

void EngineLoop::Impl::apply_cancels() {
  for (const Ticket ticket : taken_.cancels) {
    if (!cancel_arriving(ticket)) cancel_active(ticket);
  }
  taken_.cancels.clear();
}

void EngineLoop::Impl::cancel_active(Ticket ticket) {
  const auto found = active_.find(ticket);
  if (found == active_.end()) return;
  for (const RequestId id : found->second.ids) {
    if (id != 0) session_->cancel(id);
  }
}

bool EngineLoop::Impl::cancel_arriving(Ticket ticket) {
  const auto found = std::find_if(arriving_.begin(), arriving_.end(),
                                  [&](const Group& group) { return group.ticket == ticket; });
  if (found == arriving_.end()) return false;
  for (std::size_t i = 0; i < found->requests.size(); ++i)
    found->sink({.ticket = found->ticket, .index = i, .output = cancelled_before_it_ran()});
  arriving_.erase(found);
  return true;
}

void EngineLoop::Impl::cancel_everything() {
  while (!arriving_.empty()) cancel_arriving(arriving_.front().ticket);
  for (const auto& [id, place] : places_) session_->cancel(id);
}

void EngineLoop::Impl::admit() {
  while (!arriving_.empty()) {
    if (arriving_.front().cancelled) {
      cancel_arriving(arriving_.front().ticket);
      continue;
    }
    hand_over(arriving_.front());
    arriving_.pop_front();
  }
}

void EngineLoop::Impl::hand_over(Group& group) {
  if (group.error.has_value()) return refuse(group, refusal_of(*group.error));
  if (std::optional<Refusal> refusal = no_room_for(group)) return refuse(group, std::move(*refusal));
  Result<std::vector<RequestId>> ids = submit_all(group);
  if (!ids.ok()) return refuse(group, refusal_of(ids.error()));
  const double queued_s = seconds(Clock::now() - group.submitted);
  for (std::size_t i = 0; i < ids->size(); ++i) {
    places_.emplace((*ids)[i], std::pair(group.ticket, i));
    if (observer_ != nullptr) observer_->taken((*ids)[i], queued_s);
  }
  const std::size_t count = ids->size();
  active_.emplace(group.ticket, Active{std::move(group.sink), std::move(*ids), count});
}

// All or none: those before one that is refused are cancelled, and nobody hears of them. A prompt's tokens go
// from answer to answer instead of being copied.
Result<std::vector<RequestId>> EngineLoop::Impl::submit_all(Group& group) {
  std::vector<RequestId> ids;
  for (std::size_t i = 0; i < group.requests.size(); ++i) {
    TextRequest& request = group.requests[i];
    if (i > 0 && !has_prompt(request)) {
      request.ids = std::move(group.requests[i - 1].ids);
      request.guides = group.requests[i - 1].guides;
    }
    const Result<RequestId> id = session_->submit(request);
    if (!id.ok()) {
      for (const RequestId earlier : ids) session_->cancel(earlier);
      return id.error();
    }
    ids.push_back(*id);
  }
  return ids;
}

std::optional<Refusal> EngineLoop::Impl::no_room_for(const Group& group) const {
  if (group.late)
    return Refusal{Refusal::Why::draining, "this server is draining and takes no more requests"};
  const Queue queue = session_->engine().queue();
  if (static_cast<std::int64_t>(group.requests.size()) <= queue.room) return std::nullopt;
  if (queue.waiting == 0)
    return Refusal{Refusal::Why::never_fits,
                   fmt::format("{} answers at once are more than the {} that may wait here: ask for fewer",
                               group.requests.size(), queue.room)};
  return Refusal{Refusal::Why::queue_full,
                 fmt::format("{} requests wait and there is room for {} more: try again later", queue.waiting,
                             queue.room),
                 retry_after()};
}

void EngineLoop::Impl::refuse(Group& group, Refusal refusal) {
  if (observer_ != nullptr) observer_->refused(group.ticket, refusal);
  group.sink({.ticket = group.ticket, .refusal = &refusal});
}

void EngineLoop::Impl::deliver(TextOutput& output) {
  const auto place = places_.find(output.id);
  if (place == places_.end()) return;  // of a group that was refused as a whole
  if (observer_ != nullptr) observer_->output(output, seconds(Clock::now().time_since_epoch()));
  const auto [ticket, index] = place->second;
  const auto active = active_.find(ticket);
  const bool last = output.finish != Finish::none;
  active->second.sink({.ticket = ticket, .index = index, .output = std::move(output)});
  if (!last) return;
  note_finished();
  places_.erase(place);
  active->second.ids[index] = 0;
  if (--active->second.unfinished == 0) active_.erase(active);
}

void EngineLoop::Impl::note_finished() {
  finished_[finished_count_ % finished_.size()] = Clock::now();
  ++finished_count_;
}

// Half the queue's time at the rate of late; without a rate, a second.
double EngineLoop::Impl::retry_after() const {
  const std::size_t known = std::min(finished_count_, finished_.size());
  if (known == 0) return 1.0;
  const Clock::time_point oldest =
      finished_[finished_count_ > known ? finished_count_ % finished_.size() : 0];
  const double rate = static_cast<double>(known) / std::max(1e-3, seconds(Clock::now() - oldest));
  const double half_queue = 0.5 * session_->engine().queue().waiting / rate;
  return std::clamp(std::ceil(half_queue), 1.0, kMostRetryAfter);
}

// A turn that had requests and ran no step is no sign of life.
void EngineLoop::Impl::publish(bool alive) {
  const std::lock_guard lock(mutex_);
  if (alive) {
    ++pulse_.turns;
    last_turn_ = Clock::now();
  }
  pulse_.unfinished = unfinished();
  pulse_.waiting = static_cast<std::int64_t>(preparing_.size() + inbox_.groups.size());
  if (pulse_.unfinished == 0 && pulse_.waiting == 0) ended_.notify_all();
}

void EngineLoop::Impl::sleep() {
  std::unique_lock lock(mutex_);
  const auto something = [this] { return stopping_ || cancel_all_ || !inbox_.empty(); };
  if (!places_.empty()) {
    // Its requests wait for work that the session does on threads of its own.
    wake_.wait_for(lock, kAskAgain, something);
    return;
  }
  pulse_.idle = !something();
  wake_.wait(lock, something);
  pulse_.idle = false;
}

// ---- the public face -------------------------------------------------------------------------------------

EngineLoop::EngineLoop(std::unique_ptr<Session> session, LoopObserver* observer)
    : info_(session->engine().info()),
      defaults_(session->defaults()),
      tool_format_(session->tool_format()),
      impl_(std::make_unique<Impl>(std::move(session), observer)) {}

EngineLoop::~EngineLoop() = default;

Ticket EngineLoop::submit(std::vector<TextRequest> requests, Sink sink) {
  return impl_->submit(std::move(requests), std::move(sink));
}
void EngineLoop::cancel(Ticket ticket) { impl_->cancel(ticket); }
void EngineLoop::post(std::function<void(Session&)> function) { impl_->post(std::move(function)); }
void EngineLoop::beside(std::size_t bytes, std::function<void(const Session&)> function) {
  impl_->beside(bytes, std::move(function));
}
Pulse EngineLoop::pulse() const { return impl_->pulse(); }
void EngineLoop::begin_drain() { impl_->begin_drain(); }
bool EngineLoop::drain(Clock::time_point deadline) { return impl_->drain(deadline); }
void EngineLoop::stop() { impl_->stop(); }

}  // namespace quire::server
