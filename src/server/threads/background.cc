#include "server/threads/background.h"

#include <utility>

namespace quire::server {

Background::Background() : thread_([this] { loop(); }) {}

Background::~Background() { stop(); }

void Background::run(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  work_.push_back(std::move(work));
  changed_.notify_one();
}

void Background::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  work_.clear();
}

void Background::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (stopping_) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace quire::server
