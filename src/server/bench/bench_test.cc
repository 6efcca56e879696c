// The load generator: its parsers in any chunks, its arithmetic on hand-made times, and the whole of it
// against a small server of its own whose times are known.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "server/bench/bench_serve.h"
#include "server/bench/plot.h"
#include "server/bench/response_reader.h"

namespace quire::server::bench {
namespace {

using Json = nlohmann::json;

// Feeds `bytes` in random pieces.
std::string read_in_pieces(ResponseReader& reader, const std::string& bytes, std::mt19937& random) {
  std::string body;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t count = std::min<std::size_t>(bytes.size() - at, 1 + random() % 9);
    const Status fed = reader.feed(std::string_view(bytes).substr(at, count), body);
    EXPECT_TRUE(fed.ok()) << fed.error().message;
    at += count;
  }
  return body;
}

TEST(ResponseReader, EveryKindOfBodyInAnyPieces) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    ResponseReader sized;
    EXPECT_EQ(read_in_pieces(sized, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", random), "hello");
    EXPECT_TRUE(sized.complete() && sized.keeps_alive());
    ResponseReader chunked;
    EXPECT_EQ(read_in_pieces(chunked,
                             "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
                             "Connection: close\r\n\r\n5;x=1\r\nhel\r\n\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n",
                             random),
              "hel\r\n!");
    EXPECT_TRUE(chunked.complete());
    EXPECT_FALSE(chunked.keeps_alive());
    ResponseReader open;
    EXPECT_EQ(read_in_pieces(open, "HTTP/1.0 503 No\r\n\r\nall the rest", random), "all the rest");
    EXPECT_FALSE(open.complete());
    EXPECT_TRUE(open.end().ok());
    EXPECT_TRUE(open.complete());
    EXPECT_EQ(open.status(), 503);
  }
}

TEST(ResponseReader, RefusesWhatIsNoAnswer) {
  for (const char* bytes :
       {"SSH-2.0-x\r\n\r\n", "HTTP/1.1 20\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"}) {
    ResponseReader reader;
    std::string body;
    EXPECT_FALSE(reader.feed(bytes, body).ok()) << bytes;
  }
  ResponseReader cut;
  std::string body;
  EXPECT_TRUE(cut.feed("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", body).ok());
  EXPECT_FALSE(cut.end().ok());
  ResponseReader huge;
  EXPECT_FALSE(huge.feed(std::string(ResponseReader::kMostHead + 1, 'x'), body).ok());
}

TEST(EventReader, EventsInAnyPieces) {
  const std::string bytes =
      ": a comment\n\ndata: one\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\n\ndata: not yet";
  std::mt19937 random(9);
  for (int round = 0; round < 100; ++round) {
    EventReader reader;
    std::vector<std::string> events;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = std::min<std::size_t>(bytes.size() - at, 1 + random() % 7);
      reader.feed(bytes.substr(at, count));
      at += count;
      for (std::string data; reader.next(data);) events.push_back(data);
    }
    EXPECT_EQ(events, (std::vector<std::string>{"one", "two\nlines", "[DONE]"}));
  }
}

TEST(StreamEvent, WhatServersSend) {
  const auto event = [](const char* data) { return parse_event(data).value(); };
  EXPECT_TRUE(event("[DONE]").done);
  EXPECT_TRUE(event(R"({"choices":[{"text":"x"}]})").has_text);
  EXPECT_TRUE(event(R"({"choices":[{"delta":{"content":"x"},"finish_reason":null}]})").has_text);
  EXPECT_TRUE(event(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})").has_text);
  EXPECT_FALSE(event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})").has_text);
  EXPECT_TRUE(event(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})").finished);
  const StreamEvent last = event(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5}}})");
  ASSERT_TRUE(last.usage.has_value());
  EXPECT_EQ(last.usage->prompt_tokens + last.usage->output_tokens * 10 + last.usage->cached_tokens * 100,
            537);
  EXPECT_EQ(event(R"({"error":{"message":"no"}})").error, "no");
  for (const char* data : {"", "null", "[1]", "{", "text"}) EXPECT_FALSE(parse_event(data).ok()) << data;
  for (const char* data :
       {R"({"choices":null})", R"({"choices":[1]})", R"({"choices":[{"delta":7}],"usage":1})"})
    EXPECT_FALSE(event(data).has_text) << data;
}

TEST(Target, Urls) {
  const auto url = [](const char* text) {
    const auto target = parse_target(text);
    return target.ok() ? target->url() : "refused";
  };
  EXPECT_EQ(url("http://127.0.0.1:8080"), "http://127.0.0.1:8080");
  EXPECT_EQ(url("localhost:9/v1/"), "http://localhost:9");
  EXPECT_EQ(url("http://[::1]:8080/api/v1"), "http://[::1]:8080/api");
  EXPECT_EQ(url("host"), "http://host:80");
  for (const char* bad :
       {"", "https://x", "http://", "http://x:port", "http://[::1", "http://[::1]x", "x:123456", "x:65536",
        "x:99999", "x:0", "x:00000", "x:", "x:+80", "x:-1", "x: 80", "[::1]:65536", "x:18446744073709551617"})
    EXPECT_EQ(url(bad), "refused") << bad;
  EXPECT_EQ(url("x:65535"), "http://x:65535");
  EXPECT_EQ(parse_target("x:99999").error().message, "x:99999: port 99999 is outside 1 to 65535");
}

TEST(Prompts, OfAFileAndOfWords) {
  const Wording wording{.model = "m", .output_tokens = 9};
  const auto jobs = jobs_of_file(
      "{\"prompt\":\"a\"}\n\n{\"messages\":[],\"max_tokens\":3,\"stream\":false}\r\n", wording, 5);
  ASSERT_TRUE(jobs.ok()) << jobs.error().message;
  ASSERT_EQ(jobs->size(), 5u);
  EXPECT_EQ((*jobs)[0].path, "/v1/completions");
  EXPECT_EQ((*jobs)[3].path, "/v1/chat/completions");
  EXPECT_EQ(Json::parse((*jobs)[0].body)["max_tokens"], 9);
  EXPECT_EQ(Json::parse((*jobs)[1].body)["max_tokens"], 3);
  EXPECT_EQ(Json::parse((*jobs)[1].body)["stream"], true);
  for (const char* bad : {"", "\n", "x", "{}", "{\"prompt\":1,\"messages\":[]}"})
    EXPECT_FALSE(jobs_of_file(bad, wording, 0).ok()) << bad;

  const Synthetic synthetic{.requests = 30, .prefixes = 2, .prefix_words = 50, .own_words = 5, .seed = 3};
  std::map<std::string, int> beginnings;
  for (const Job& job : synthetic_jobs(synthetic, wording)) {
    const std::string prompt = Json::parse(job.body)["prompt"];
    EXPECT_EQ(std::count(prompt.begin(), prompt.end(), ' '), 54);
    std::size_t end = 0;
    for (int word = 0; word < 50; ++word) end = prompt.find(' ', end) + 1;
    ++beginnings[prompt.substr(0, end)];
  }
  EXPECT_EQ(beginnings.size(), 2u);
  EXPECT_EQ(synthetic_jobs(synthetic, wording)[7].body, synthetic_jobs(synthetic, wording)[7].body);

  std::vector<Job> many(20000);
  set_arrivals(many, 50.0, 1);
  EXPECT_NEAR(many.back().at_s, 400.0, 20.0);
  double sum = 0.0;  // of an exponential distribution: the mean of squares is twice the square of the mean
  for (std::size_t i = 1; i < many.size(); ++i) {
    const double gap = many[i].at_s - many[i - 1].at_s;
    EXPECT_GE(gap, 0.0);
    sum += gap * gap;
  }
  EXPECT_NEAR(sum / 20000.0, 2.0 / 2500.0, 0.2 / 2500.0);
}

TEST(Report, HandMadeTimes) {
  std::vector<Outcome> outcomes(4);
  // 0: first token after 1 s, then 0.1 and 0.3.
  outcomes[0] = {.begin_s = 1.0,
                 .first_s = 2.0,
                 .last_s = 2.4,
                 .end_s = 2.5,
                 .gaps_s = {0.1f, 0.3f},
                 .texts = 3,
                 .usage = Usage{100, 5, 40},
                 .status = 200};
  outcomes[1] = {.begin_s = 1.0, .first_s = 4.0, .last_s = 4.0, .end_s = 4.0, .texts = 1, .status = 200};
  outcomes[2] = {.begin_s = 2.0, .end_s = 2.1, .status = 429, .error = "full"};
  outcomes[3] = {.begin_s = -1.0};
  const Report report = report_of(outcomes, {.ttft_p99_s = 2.0});
  EXPECT_EQ(report.requests, 3);
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.errors.at("status 429: full"), 1);
  EXPECT_DOUBLE_EQ(report.seconds, 3.0);
  EXPECT_EQ(report.prompt_tokens, 100);
  EXPECT_EQ(report.cached_tokens, 40);
  EXPECT_EQ(report.output_tokens, 6);
  EXPECT_EQ(report.uncounted, 1);
  EXPECT_DOUBLE_EQ(report.tokens_s, 2.0);
  EXPECT_DOUBLE_EQ(report.ttft_s.p50, 2.0);
  EXPECT_DOUBLE_EQ(report.ttft_s.max, 3.0);
  EXPECT_NEAR(report.itl_s.mean, 0.2, 1e-6);
  EXPECT_NEAR(report.tpot_s.p50, 0.1, 1e-6);
  EXPECT_EQ(report.goodput.requests, 1);
  EXPECT_FALSE(report.goodput.met);
  EXPECT_NEAR(report.goodput.share, 1.0 / 3, 1e-9);
  const Report strict = report_of(std::span(outcomes).first(1), {.itl_p99_s = 0.2});
  EXPECT_EQ(strict.goodput.requests, 0);
  const Report loose = report_of(std::span(outcomes).first(1), {.ttft_p99_s = 1.0, .itl_p99_s = 0.31});
  EXPECT_EQ(loose.goodput.requests, 1);
  EXPECT_TRUE(loose.goodput.met);
  EXPECT_EQ(report_of({}, {}).requests, 0);
  const std::string svg = plot_svg(outcomes, report, {.ttft_p99_s = 2.0}, "a <title> & more");
  EXPECT_NE(svg.find("a &lt;title&gt; &amp; more"), std::string::npos);
  EXPECT_NE(plot_svg({}, {}, {}, "").find("</svg>"), std::string::npos);
}

// A server of one thread a connection: GET answers a list of models; a POST streams `tokens` pieces with
// `gap` between them, the first after three gaps. Every fifth connection's third answer ends too early.
class SlowServer {
 public:
  explicit SlowServer(std::chrono::milliseconds gap, int tokens) : gap_(gap), tokens_(tokens) {
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_, 64), 0);
    socklen_t size = sizeof(address);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { accept_all(); });
  }
  ~SlowServer() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
    for (std::thread& thread : threads_) thread.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::atomic<int> connections{0};
  std::atomic<int> most_under_way{0};
  std::atomic<int> refuse{0};     // so many requests get 429
  std::atomic<int> cut{0};        // so many answers end in their middle
  std::atomic<bool> part{false};  // close every connection after an answer, without saying so

 private:
  void accept_all() {
    for (;;) {
      const int connection = accept(socket_, nullptr, nullptr);
      if (connection < 0) return;
      ++connections;
      threads_.emplace_back([this, connection] { serve(connection); });
    }
  }
  void serve(int connection) {
    std::string in;
    char bytes[4096];
    for (;;) {
      const ssize_t got = recv(connection, bytes, sizeof(bytes), 0);
      if (got <= 0) break;
      in.append(bytes, static_cast<std::size_t>(got));
      const std::size_t head = in.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      const std::size_t at = in.find("content-length: ");
      const std::size_t length = at == std::string::npos ? 0 : std::stoul(in.substr(at + 16));
      if (in.size() < head + 4 + length) continue;
      const bool get = in[0] == 'G';
      in.erase(0, head + 4 + length);
      if (!answer(connection, get) || part) break;
    }
    close(connection);
  }
  static bool put(int connection, const std::string& text) {
    return send(connection, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  static bool put_chunk(int connection, const std::string& text) {
    char size[32];
    std::snprintf(size, sizeof(size), "%zx\r\n", text.size());
    return put(connection, size + text + "\r\n");
  }
  bool answer(int connection, bool get) {
    const auto whole = [&](const char* status, const std::string& body) {
      return put(connection, std::string("HTTP/1.1 ") + status +
                                 "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    };
    if (get) return whole("200 OK", R"({"data":[{"id":"slow"}]})");
    if (refuse.fetch_sub(1) > 0) return whole("429 Too Many Requests", "the queue is full");
    const int now = ++under_way_;
    for (int most = most_under_way; now > most && !most_under_way.compare_exchange_weak(most, now);) {
    }
    const bool cuts = cut.fetch_sub(1) > 0;
    put(connection,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    std::this_thread::sleep_for(2 * gap_);
    for (int token = 0; token < tokens_; ++token) {
      std::this_thread::sleep_for(gap_);
      put_chunk(connection, "data: {\"choices\":[{\"text\":\"t\"}]}\n\n");
      if (cuts && token == tokens_ / 2) return --under_way_, false;
    }
    put_chunk(connection, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":" +
                              std::to_string(tokens_) + "}}\n\ndata: [DONE]\n\n");
    --under_way_;
    return put(connection, "0\r\n\r\n");
  }
  std::chrono::milliseconds gap_;
  int tokens_;
  int socket_ = -1;
  int port_ = 0;
  std::atomic<int> under_way_{0};
  std::thread thread_;
  std::vector<std::thread> threads_;
};

BenchServeRequest small_load(const SlowServer& server) {
  BenchServeRequest request;
  request.url = server.url();
  request.requests = 12;
  request.clients = 3;
  request.synthetic.own_words = 4;
  request.timeout_s = 30.0;
  return request;
}

TEST(BenchServe, AClosedLoopKeepsItsClientsBusy) {
  SlowServer server(std::chrono::milliseconds(20), 5);
  BenchServeRequest request = small_load(server);
  request.limits = {.ttft_p99_s = 20.0, .itl_p99_s = 20.0};
  const auto result = bench_serve(request, [](std::size_t, std::size_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Report& report = result->report;
  EXPECT_EQ(result->model, "slow");
  EXPECT_EQ(report.completed, 12) << bench_serve_text(request, *result);
  EXPECT_EQ(report.output_tokens, 60);
  EXPECT_EQ(report.prompt_tokens, 132);
  EXPECT_EQ(server.most_under_way, 3);
  EXPECT_LE(server.connections, 6);  // two to reach it, one for the model's name, three that are kept
  // The server sleeps so long; it may take longer, never less.
  EXPECT_GE(report.ttft_s.p50, 0.060);
  EXPECT_GE(report.itl_s.mean, 0.015);
  EXPECT_GE(report.e2e_s.p50, 0.140);
  EXPECT_GE(report.seconds, 4 * 0.140);
  EXPECT_TRUE(report.goodput.met);
  const Json json = Json::parse(bench_serve_json(request, *result, true));
  EXPECT_EQ(json["samples"].size(), 12u);
  EXPECT_EQ(json["samples"][0]["itl_s"].size(), 4u);
  EXPECT_EQ(json["goodput"]["requests"], 12);
  for (const char* key : {"requests", "prompt_tokens", "output_tokens", "seconds", "tokens_s"})
    EXPECT_TRUE(json[key].is_number()) << key;
  EXPECT_TRUE(json["ttft_s"]["p99"].is_number());
}

TEST(BenchServe, AnOpenLoopDoesNotWait) {
  SlowServer server(std::chrono::milliseconds(30), 5);
  BenchServeRequest request = small_load(server);
  request.rate = 200.0;
  request.clients = 1;
  const auto result = bench_serve(request, [](std::size_t, std::size_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->report.completed, 12);
  EXPECT_GT(server.most_under_way, 4);
}

TEST(BenchServe, AnOpenLoopThatTakesDaysIsRefused) {
  SlowServer server(std::chrono::milliseconds(1), 2);
  BenchServeRequest request = small_load(server);
  request.rate = 1e-4;
  const auto refused = bench_serve(request, [](std::size_t, std::size_t) { return true; });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::bad_input);
  // 12 requests in 86400 s.
  EXPECT_NE(refused.error().message.find("--rate 0.000139 or more, or --requests 8 or fewer"),
            std::string::npos)
      << refused.error().message;
  request.rate = 0.000139;
  const auto stopped = bench_serve(request, [](std::size_t, std::size_t) { return false; });
  EXPECT_TRUE(stopped.ok()) << stopped.error().message;
}

TEST(BenchServe, FailuresAreCountedByName) {
  SlowServer server(std::chrono::milliseconds(1), 6);
  server.refuse = 3;
  server.cut = 2;
  BenchServeRequest request = small_load(server);
  request.clients = 2;
  const auto result = bench_serve(request, [](std::size_t, std::size_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->report.completed, 7);
  EXPECT_EQ(result->report.errors.at("status 429: the queue is full"), 3);
  EXPECT_EQ(result->report.errors.at("the connection ended in the middle of an answer"), 2);
}

TEST(BenchServe, AKeptConnectionThatWasClosedIsNoFailure) {
  SlowServer server(std::chrono::milliseconds(1), 3);
  server.part = true;
  const auto result = bench_serve(small_load(server), [](std::size_t, std::size_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->report.completed, 12);
  EXPECT_GE(server.connections, 12);
}

TEST(BenchServe, TimesOutAndStops) {
  SlowServer server(std::chrono::milliseconds(400), 3);
  BenchServeRequest request = small_load(server);
  request.wording.model = "slow";
  request.requests = 2;
  request.timeout_s = 0.3;
  auto result = bench_serve(request, [](std::size_t, std::size_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->report.errors.at("no whole answer within 0.3 s"), 2);
  request.timeout_s = 30.0;
  request.requests = 1000;
  result = bench_serve(request, [](std::size_t, std::size_t) { return false; });
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->report.requests, 3);  // those under way when it was stopped
  EXPECT_EQ(result->report.errors.at("stopped"), 3);
}

TEST(BenchServe, NobodyThere) {
  BenchServeRequest request;
  request.url = "http://127.0.0.1:1";
  const auto result = bench_serve(request, [](std::size_t, std::size_t) { return true; });
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("127.0.0.1:1"), std::string::npos);
}

}  // namespace
}  // namespace quire::server::bench
