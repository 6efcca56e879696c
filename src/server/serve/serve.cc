#include "server/serve/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/text.h"
#include "server/api/routes.h"
#include "server/kv_view/kv_view.h"
#include "server/loop/loop.h"
#include "server/metrics/metrics.h"
#include "server/page/page.h"
#include "server/serve/health.h"
#include "server/serve/signals.h"

namespace quire::server {

namespace {

// After the last answer was made: for its bytes to leave, and for readers to take them.
constexpr std::chrono::seconds kFlushTime{5};

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void wait_for_connections(const HttpServer& http) {
  const Clock::time_point deadline = Clock::now() + kFlushTime;
  while (http.stats().connections > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// What a user asks first of a server that has come up.
std::string limits(const EngineInfo& info) {
  return fmt::format(
      "the web page is at /, the API at /v1; up to {} tokens of prompt and answer, {} requests at a time, {} "
      "tokens of KV cache; Ctrl-C ends it",
      info.max_context, info.max_running, info.kv_capacity_tokens);
}

}  // namespace

Status serve(const ServeOptions& options, std::unique_ptr<Session> session, const std::string& backends,
             const std::function<void(const std::string&)>& say) {
  const std::string about = limits(session->engine().info());
  Metrics metrics(options.served_model_name, session->engine().info().max_context);
  EngineLoop loop(std::move(session), &metrics);
  KvView view(loop, &metrics.history(), options.served_model_name);
  Router router;
  add_health_routes(router, loop, options.ready_s);
  add_api_routes(router, loop, options);
  add_kv_routes(router, view, backends);
  add_metrics_routes(router, metrics);
  add_page_routes(router);
  HttpServerOptions http_options = options.http;
  http_options.on_answer = [&metrics, log = options.http.on_answer](const HttpAccess& access) {
    metrics.answered(access.status);
    if (log) log(access);
  };
  QUIRE_TRY(http, HttpServer::listen(http_options, router));
  metrics.follow_http([&http] { return http->stats(); });
  QUIRE_TRY_STATUS(take_signals());
  http->start();
  say(fmt::format(
      "{} at {}", options.served_model_name,
      comma_list(http->addresses(), [](const std::string& address) { return "http://" + address; })));
  say(about);
  if (http->connections_limit() < options.http.connections) {
    say(fmt::format("{} connections at a time, not {}: this process may not open more files (ulimit -n)",
                    http->connections_limit(), options.http.connections));
  }
  const int signal = wait_for_end();
  const std::int64_t unfinished = loop.pulse().unfinished;
  const char* name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
  say(unfinished == 0 ? fmt::format("{}: no request runs, ending", name)
                      : fmt::format("{}: {} request{} up to {:g} s to end; once more ends now", name,
                                    unfinished, unfinished == 1 ? " has" : "s have", options.drain_s));
  const bool whole = loop.drain(after(options.drain_s));
  if (!whole) say("the deadline came: what still ran was cancelled");
  http->drain();
  wait_for_connections(*http);
  http->stop();
  loop.stop();
  return {};
}

Result<std::vector<std::string>> read_api_keys(const std::string& path) {
  std::ifstream file(path);
  if (!file) return bad_input(fmt::format("--api-key-file {}: the file cannot be read", path));
  std::vector<std::string> keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    if (!std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c < 0x7f; }))
      return bad_input(fmt::format(
          "--api-key-file {}: line {} holds a space or a character that is not ASCII", path, number));
    keys.push_back(line);
  }
  if (file.bad()) return bad_input(fmt::format("--api-key-file {}: the file cannot be read", path));
  if (keys.empty())
    return bad_input(
        fmt::format("--api-key-file {}: no key in it; give one a line, or leave the flag out", path));
  return keys;
}

}  // namespace quire::server
