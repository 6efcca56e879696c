// A thread that runs functions one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace quire::server {

class Background {
 public:
  Background();
  ~Background();  // stop()
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  void run(std::function<void()> work);  // any thread
  void stop();                           // waits for the one that runs; the rest is dropped

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace quire::server
