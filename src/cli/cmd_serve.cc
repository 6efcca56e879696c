// `quire serve`: the OpenAI API over HTTP.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "base/clock.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "cli/matrix.h"
#include "cli/observe.h"
#include "server/http/access.h"
#include "server/serve/serve.h"

namespace quire::cli {

namespace {

// Readers of running answers should not notice another's long prompt. Eight streams of SmolLM2 on two cores
// while 4,000 tokens arrive: p99 between tokens 92 ms instead of 1,850, the prompt's first token after 15.4 s
// instead of 12.2; with 32 short requests at once the same tokens a second (AMD EPYC, AVX-512, 2026-11-30).
constexpr float kTargetItlMs = 60;

struct Serve {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  bool explain = false;
  Options options;
  server::ServeOptions serve;
  std::string api_key_file;
  std::int32_t port = 8080;
  std::int32_t connections = 1024;
  std::int64_t head_bytes = 0, body_bytes = 0, body_memory = 0, stream_buffer = 0;
  float head_s = 10, body_s = 60, idle_s = 75, write_s = 60, drain_s = 30, ready_s = 30;
};

// "SmolLM2-135M-Instruct.Q4_1" of .../SmolLM2-135M-Instruct.Q4_1.gguf; a folder's own name.
std::string name_of_model(const std::string& path) {
  std::filesystem::path name = std::filesystem::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  return name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
}

void add_listen_settings(Serve* serve) {
  Settings& settings = *serve->settings;
  const auto text = [&](const char* name, const char* value, const char* help, std::string* target) {
    settings.add({.name = name,
                  .group = "Server",
                  .value_name = value,
                  .help = help,
                  .set = into(target),
                  .show = [target] { return *target; }});
  };
  text("host", "ADDRESS", "where to listen: an address or name; :: and 0.0.0.0 are all of them",
       &serve->serve.http.host);
  settings.add({.name = "port",
                .group = "Server",
                .value_name = "N",
                .help = "TCP port; 0 is any free one",
                .set = into(&serve->port, 0, 65535),
                .show = [serve] { return std::to_string(serve->port); }});
  text("api-key-file", "FILE", "keys, one a line; requests need one of them (default: none is needed)",
       &serve->api_key_file);
  text("served-model-name", "NAME", "the model's name in the API; default: the file's",
       &serve->serve.served_model_name);
  settings.add({.name = "cors",
                .group = "Server",
                .value_name = "ORIGIN",
                .help = "let web pages of this origin (or *) use the API; default: none",
                .set = [serve](const std::string& value) -> Status {
                  if (!server::is_cors_origin(value))
                    return bad_input(
                        "not an origin: give http://HOST or https://HOST:PORT, with no path, or *");
                  serve->serve.http.cors_origin = value;
                  return {};
                },
                .show = [serve] { return serve->serve.http.cors_origin; }});
}

void add_limit_settings(Serve* serve) {
  Settings& settings = *serve->settings;
  const auto time = [&](const char* name, const char* help, float* target, double low) {
    settings.add({.name = name,
                  .group = "Server limits",
                  .value_name = "SECONDS",
                  .help = help,
                  .set = into(target, low, 86400),
                  .show = [target] { return fmt::format("{:g}", *target); }});
  };
  const auto bytes = [&](const char* name, const char* help, std::int64_t* target) {
    settings.add({.name = name,
                  .group = "Server limits",
                  .value_name = "SIZE",
                  .help = help,
                  .set = into_bytes(target),
                  .show = [target] { return *target == 0 ? std::string("auto") : std::to_string(*target); }});
  };
  settings.add({.name = "max-connections",
                .group = "Server limits",
                .value_name = "N",
                .help = "open at a time; more get 503",
                .set = into(&serve->connections, 1, 1 << 20),
                .show = [serve] { return std::to_string(serve->connections); }});
  bytes("max-head", "of one request's head; auto is 32K", &serve->head_bytes);
  bytes("max-body", "of one request's body; auto is 16M", &serve->body_bytes);
  bytes("max-body-memory", "of all bodies that are being read; auto is 256M", &serve->body_memory);
  bytes("max-unread", "of a stream that its reader has not taken; auto is 1M", &serve->stream_buffer);
  time("head-time", "for the head of a request to arrive", &serve->head_s, 0.1);
  time("body-time", "for the body of a request to arrive", &serve->body_s, 0.1);
  time("idle-time", "between requests of a connection", &serve->idle_s, 0.1);
  time("write-time", "without the reader taking a byte", &serve->write_s, 0.1);
  time("drain-time", "for running answers to end after TERM or INT", &serve->drain_s, 0);
  time("ready-time", "/ready: the longest time that the engine may seem to stand still", &serve->ready_s,
       0.1);
}

Status check_limits(const Serve& serve) {
  constexpr std::int64_t kLeast = 1024;
  for (const auto& [name, value] : {std::pair{"--max-head", serve.head_bytes},
                                    {"--max-body", serve.body_bytes},
                                    {"--max-body-memory", serve.body_memory},
                                    {"--max-unread", serve.stream_buffer}}) {
    if (value != 0 && value < kLeast)
      return bad_input(fmt::format("{} {} is under {}: no request would fit", name, value, kLeast));
  }
  return {};
}

// The line of an answer in the log: the client's own words in it cannot end a string of a JSON line.
std::string log_line(const server::HttpAccess& access) {
  std::string path = access.path;
  std::replace_if(
      path.begin(), path.end(), [](char c) { return c == '"' || c == '\\' || c < ' ' || c > '~'; }, '?');
  std::string id = access.id;
  std::replace_if(
      id.begin(), id.end(), [](char c) { return c == '"' || c == '\\'; }, '?');
  return fmt::format("{} {} {} {} {} bytes {:.1f} ms {}{}", access.client, access.method, path, access.status,
                     access.body_bytes, access.seconds * 1e3, id, access.whole ? "" : " (the client left)");
}

server::HttpServerOptions http_options(const Serve& serve) {
  server::HttpServerOptions http = serve.serve.http;
  const auto or_else = [](std::int64_t value, std::size_t other) {
    return value == 0 ? other : static_cast<std::size_t>(value);
  };
  const auto milliseconds = [](float seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3F));
  };
  http.port = serve.port;
  http.connections = serve.connections;
  http.head_bytes = or_else(serve.head_bytes, http.head_bytes);
  http.body_bytes = or_else(serve.body_bytes, http.body_bytes);
  http.body_memory = std::max(or_else(serve.body_memory, http.body_memory), http.body_bytes);
  http.stream_buffer = or_else(serve.stream_buffer, http.stream_buffer);
  http.head_time = milliseconds(serve.head_s);
  http.body_time = milliseconds(serve.body_s);
  http.idle_time = milliseconds(serve.idle_s);
  http.write_time = milliseconds(serve.write_s);
  http.on_answer = [](const server::HttpAccess& access) {
    if (spdlog::should_log(spdlog::level::info)) spdlog::info("{}", log_line(access));
  };
  return http;
}

Status run_command(Serve& serve) {
  QUIRE_TRY_STATUS(check_limits(serve));
  server::ServeOptions& options = serve.serve;
  options.http = http_options(serve);
  if (!serve.api_key_file.empty()) {
    QUIRE_TRY(keys, server::read_api_keys(serve.api_key_file));
    options.http.api_keys = std::move(keys);
  }
  if (options.served_model_name.empty()) options.served_model_name = name_of_model(options.model);
  options.created = static_cast<std::int64_t>(unix_now());
  options.drain_s = serve.drain_s;
  options.ready_s = serve.ready_s;
  report_crashes();
  QUIRE_TRY(backends, backends_as_json(options.model, serve.options));
  announce(fmt::format("loading {}", options.model));
  QUIRE_TRY(session, Session::open(options.model, serve.options));
  log_engine(session->engine().info(), serve.explain);
  return server::serve(options, std::move(session), backends,
                       [](const std::string& line) { announce(line); });
}

}  // namespace

Command make_serve(CLI::App& root) {
  auto serve = std::make_shared<Serve>();
  serve->options.target_itl_ms = kTargetItlMs;
  Flags command(root, "serve", "answer the OpenAI API over HTTP");
  command.need("MODEL", &serve->serve.model, "a Hugging Face folder or a .gguf file");
  add_listen_settings(serve.get());
  add_limit_settings(serve.get());
  add_engine_settings(*serve->settings, &serve->options, &serve->explain);
  add_observe_settings(*serve->settings, &serve->options);
  return {&command.app(), serve->settings, [serve] { return run_command(*serve); }};
}

}  // namespace quire::cli
