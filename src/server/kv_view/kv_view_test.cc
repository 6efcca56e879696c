// /v1/kv: versions and increments on maps of our own, and the whole of it over a tiny model that works.
#include "server/kv_view/kv_view.h"

#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/golden_dir.h"
#include "server/http/router.h"

namespace quire::server {
namespace {

using Json = nlohmann::json;

class Caught final : public Responder {
 public:
  void send(HttpAnswer answer) override { answer_.set_value(std::move(answer)); }
  void start_stream(int, const std::string&, HttpFields) override { FAIL() << "a stream"; }
  void write(std::string_view) override {}
  void finish() override {}
  bool closed() const override { return false; }
  void on_close(std::function<void()>) override {}
  HttpAnswer wait() {
    std::future<HttpAnswer> future = answer_.get_future();
    if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready)
      return {.status = 0, .body = "{}"};
    return future.get();
  }

 private:
  std::promise<HttpAnswer> answer_;
};

HttpRequest kv_request(const std::string& since) {
  HttpRequest request{.method = "GET", .target = "/v1/kv?since=" + since, .path = "/v1/kv"};
  if (!since.empty()) request.query.emplace_back("since", since);
  return request;
}

// What a client makes of the answers: whole ones, or what changed.
struct Client {
  std::uint64_t version = 0;
  std::map<std::string, std::map<std::int64_t, Json>> pages;  // [group][id], free ones left out
  Json nodes;

  void take(const Json& kv) {
    if (kv["since"] == 0) pages.clear();
    for (const Json& group : kv["groups"]) {
      auto& mine = pages[group["name"]];
      for (const Json& row : group["page_list"]) {
        if (row[1] == "free") {
          mine.erase(row[0].get<std::int64_t>());
        } else {
          mine[row[0].get<std::int64_t>()] = row;
        }
      }
    }
    if (!kv["tree"]["list"].is_null()) nodes = kv["tree"]["list"];
    version = kv["version"];
  }
  void expect_same(const Client& other) const {
    EXPECT_EQ(version, other.version);
    EXPECT_EQ(pages, other.pages);
    EXPECT_EQ(nodes, other.nodes);
  }
};

PageMap random_map(std::mt19937_64& random, const PageMap& before) {
  PageMap map = before;
  if (map.groups.empty()) {
    map.groups.resize(2);
    for (PageGroup& group : map.groups) group.pages.resize(20);
    map.groups[0].name = "full";
    map.groups[1].name = "window \"w\" \xff";  // quoted, and no UTF-8
  }
  for (std::size_t change = random() % 6; change > 0; --change) {
    PageState& page = map.groups[random() % 2].pages[random() % 20];
    page = PageState{};
    page.use = static_cast<PageUse>(random() % kPageUseNames.size());
    if (page.use == PageUse::free) continue;
    page.requests = static_cast<std::int32_t>(random() % 7);
    for (std::size_t i = 0; i < PageState::kNamed && static_cast<std::int32_t>(i) < page.requests; ++i)
      page.request[i] = 1 + random() % 100;
    page.references = page.requests + 1;
    page.node = static_cast<std::uint32_t>(random() % 3);
  }
  if (random() % 3 == 0) map.nodes.push_back({.id = static_cast<std::uint32_t>(random() % 100), .tokens = 7});
  if (random() % 5 == 0) map.nodes.clear();
  return map;
}

Json json_of(const PageVersions& versions, std::uint64_t since) {
  const EngineInfo info;
  const EngineStats stats;
  const KvFacts facts{.model = "m", .info = info, .pages = versions, .stats = stats, .queue = {}};
  return Json::parse(kv_json(facts, since, {}));
}

TEST(KvJson, IncrementsGiveWhatTheWholeGives) {
  std::mt19937_64 random(11);
  PageVersions versions(1000);
  PageMap map;
  std::vector<Client> clients(4);  // each asks now and then
  int same = 0;
  for (int step = 0; step < 400; ++step) {
    map = random_map(random, versions.map());
    const PageMap wanted = map;
    const bool differs = step == 0 || wanted.nodes != versions.map().nodes ||
                         wanted.groups[0].pages != versions.map().groups[0].pages ||
                         wanted.groups[1].pages != versions.map().groups[1].pages;
    const std::uint64_t before = versions.version();
    versions.take(map);
    EXPECT_EQ(versions.version(), step == 0 ? 1000 : before + (differs ? 1 : 0)) << step;
    same += differs ? 0 : 1;
    Client whole;
    whole.take(json_of(versions, 0));
    std::size_t held = 0;
    for (const PageGroup& group : wanted.groups)
      for (const PageState& page : group.pages) held += page.use == PageUse::free ? 0 : 1;
    EXPECT_EQ(whole.pages.begin()->second.size() + std::next(whole.pages.begin())->second.size(), held);
    for (Client& client : clients) {
      if (random() % 3 != 0) continue;
      client.take(json_of(versions, client.version));
      client.expect_same(whole);
    }
  }
  EXPECT_GT(same, 10);
}

TEST(KvJson, VersionsOfAnotherServerGetEverything) {
  PageVersions versions(1000);
  std::mt19937_64 random(1);
  PageMap map = random_map(random, {});
  map.groups[0].pages[3] = {.use = PageUse::request, .references = 1, .requests = 1, .request = {5}};
  versions.take(map);
  for (const std::uint64_t since : {std::uint64_t{0}, std::uint64_t{999}, std::uint64_t{1001}}) {
    const Json kv = json_of(versions, since);
    EXPECT_EQ(kv["since"], 0) << since;
    EXPECT_TRUE(kv.contains("history"));
  }
  const Json kv = json_of(versions, 1000);
  EXPECT_EQ(kv["since"], 1000);
  EXPECT_TRUE(kv["groups"][0]["page_list"].empty());
  EXPECT_TRUE(kv["tree"]["list"].is_null());
  EXPECT_EQ(kv["groups"][0]["use"]["request"].get<int>() >= 1, true);
}

TEST(LoadHistory, KeepsOneSampleAPeriodAndBridgesPauses) {
  LoadHistory history;
  for (int i = 0; i < 100; ++i) history.note({.time = 1000.0 + i * 0.25, .output_tokens = i, .running = 3});
  EXPECT_EQ(history.samples().size(), 25u);
  history.note({.time = 1100.0, .output_tokens = 500, .running = 1});
  const std::vector<LoadSample> samples = history.samples();
  ASSERT_EQ(samples.size(), 27u);
  EXPECT_EQ(samples[25].time, 1099.0);
  EXPECT_EQ(samples[25].output_tokens, samples[24].output_tokens);
  EXPECT_EQ(samples[25].running, 0);
  for (int i = 0; i < 1000; ++i) history.note({.time = 2000.0 + i});
  EXPECT_EQ(history.samples().size(), LoadHistory::kSamples);
  EXPECT_EQ(history.samples().back().time, 2999.0);
}

class KvViewTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string root = quire::testing::golden_dir();
    if (root.empty()) FAIL() << "no golden data";
    Options options;
    options.max_context = 256;
    options.page_size = 8;
    options.kv_memory_bytes = 1 << 20;
    options.threads = 1;
    auto session = Session::open(root + "/models/llama", options);
    ASSERT_TRUE(session.ok()) << session.error().message;
    loop_ = std::make_unique<EngineLoop>(std::move(*session));
    view_ = std::make_unique<KvView>(*loop_, nullptr, "tiny");
  }
  HttpAnswer ask(const std::string& since) {
    auto caught = std::make_shared<Caught>();
    view_->answer(kv_request(since), caught);
    return caught->wait();
  }
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<KvView> view_;
};

TEST_F(KvViewTest, ClientsFollowAWorkingEngine) {
  std::promise<void> done;
  std::atomic<int> left = 12;
  std::vector<TextRequest> requests;
  for (int i = 0; i < left; ++i) {
    TextRequest request;
    for (int t = 0; t < 30 + i; ++t) request.ids.push_back((t * (i % 3 + 1)) % 250);
    request.max_tokens = 60;
    request.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  loop_->submit(std::move(requests), [&](Update update) {
    ASSERT_EQ(update.refusal, nullptr) << update.refusal->message;
    if (update.output.finish != Finish::none && --left == 0) done.set_value();
  });
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::map<std::uint64_t, Client> known;  // by version
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Client client;
      do {
        const HttpAnswer answer = ask(t == 0 ? "" : std::to_string(client.version));
        ASSERT_EQ(answer.status, 200) << answer.body;
        client.take(Json::parse(answer.body));
        const std::lock_guard lock(mutex);
        const auto [at, fresh] = known.emplace(client.version, client);
        if (!fresh) at->second.expect_same(client);
      } while (left > 0);
    });
  }
  done.get_future().wait();
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(known.size(), 1u);
  // At rest: what the engine itself says, and the same version twice.
  const Json kv = Json::parse(ask("").body);
  EXPECT_EQ(kv["version"], Json::parse(ask("").body)["version"]);
  EXPECT_EQ(kv["model"], "tiny");
  EXPECT_EQ(kv["queue"]["running"], 0);
  EXPECT_TRUE(kv["requests"].empty());
  std::promise<std::pair<std::int64_t, std::size_t>> truth;
  loop_->post([&truth](Session& session) {
    PageMap map;
    session.engine().page_map(map);
    truth.set_value({session.engine().stats().pages_in_use[0], map.nodes.size()});
  });
  const auto [in_use, nodes] = truth.get_future().get();
  EXPECT_GT(in_use, 0);
  EXPECT_EQ(kv["groups"][0]["use"]["tree"], in_use);
  EXPECT_EQ(kv["groups"][0]["page_list"].size(), static_cast<std::size_t>(in_use) + 1);  // and page 0
  EXPECT_EQ(kv["tree"]["nodes"], nodes);
}

TEST_F(KvViewTest, RefusesWhatIsNoVersion) {
  for (const char* since : {"x", "-1", "1.5", "99999999999999999999999", "12x"}) {
    const HttpAnswer answer = ask(since);
    EXPECT_EQ(answer.status, 400) << since;
    EXPECT_NE(answer.body.find(since), std::string::npos) << answer.body;
  }
  EXPECT_EQ(ask("18446744073709551615").status, 200);
}

TEST_F(KvViewTest, AnswersWhenTheLoopHasStopped) {
  EXPECT_EQ(ask("").status, 200);
  loop_->stop();
  EXPECT_EQ(ask("").status, 503);
}

TEST_F(KvViewTest, NobodyIsLeftWithoutAnAnswer) {
  std::vector<std::shared_ptr<Caught>> all;
  for (int i = 0; i < 50; ++i) view_->answer(kv_request(""), all.emplace_back(std::make_shared<Caught>()));
  view_.reset();
  for (const auto& caught : all) {
    const int status = caught->wait().status;
    EXPECT_TRUE(status == 200 || status == 503) << status;
  }
}

TEST_F(KvViewTest, Routes) {
  Router router;
  add_kv_routes(router, *view_, R"({"rows":[]})");
  for (const auto& [path, body] : {std::pair("/v1/kv", "\"version\""), std::pair("/v1/backends", "rows")}) {
    const Router::Match match = router.find("GET", path);
    ASSERT_NE(match.handler, nullptr) << path;
    EXPECT_EQ(match.access, RouteAccess::keyed);
    auto caught = std::make_shared<Caught>();
    (*match.handler)(HttpRequest{}, caught);
    EXPECT_NE(caught->wait().body.find(body), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace quire::server
