// Random traffic against a model of the device: every key that a step reads must be the one that the same
// sequence wrote at that position, whatever was retracted, cancelled, voided or handed on meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "kv/audit.h"
#include "scheduler/scheduler.h"

namespace quire::scheduler {
namespace {

struct Case {
  std::uint64_t seed = 0;
  int page = 1;
  bool overlap = false;
  std::vector<kv::GroupRule> rules;
  std::vector<std::int64_t> strides;
  std::int64_t slabs = 0;
  SchedulerConfig config;
};

// What the device holds: page contents as (sequence, position), the copy of the tables, the last outputs.
class Device {
 public:
  explicit Device(const Case& parameters) : case_(parameters) {}

  void run(const StepPlan& plan) {
    for (const kv::TableUpdate& update : plan.updates) {
      table_[{update.slot.value, update.group.value, update.entry}] = update.page.value;
    }
    for (const PlanRow& row : plan.rows) {
      check_input(row);
      for (std::size_t g = 0; g < case_.rules.size(); ++g) write(row, g);
      for (std::size_t g = 0; g < case_.rules.size(); ++g) read(row, g);
      if (row.yields_token) last_output_[row.slot.value] = {row.sequence.value, row.output_index};
    }
  }

 private:
  using Stamp = std::pair<std::uint32_t, std::int32_t>;

  void check_input(const PlanRow& row) {
    if (row.input == Input::literal) return;
    const Stamp expected{row.sequence.value, row.output_index - 1};
    ASSERT_EQ(last_output_[row.slot.value], expected);
  }
  // Bytes of a token in the arena: a group's pages overlap other groups' when the accounting is wrong.
  std::int64_t address(const PlanRow& row, std::size_t g, std::int64_t key) {
    const std::int64_t page = case_.rules[g].page_tokens;
    const std::uint32_t id =
        table_[{row.slot.value, static_cast<std::uint32_t>(g), static_cast<std::uint32_t>(key / page)}];
    EXPECT_NE(id, 0u) << "sequence " << row.sequence.value << " key " << key << " of group " << g;
    return id * case_.strides[g] + key % page * (case_.strides[g] / page);
  }
  void write(const PlanRow& row, std::size_t g) {
    for (std::int64_t key = row.query_begin; key < row.visible.tokens; ++key) {
      const std::int64_t at = address(row, g, key);
      for (std::int64_t byte = 0; byte < case_.strides[g] / case_.rules[g].page_tokens; ++byte) {
        memory_[at + byte] = Stamp{row.sequence.value, static_cast<std::int32_t>(key)};
      }
    }
  }
  void read(const PlanRow& row, std::size_t g) {
    for (std::int64_t key = kv::visible_begin(case_.rules[g], row.query_begin); key < row.visible.tokens;
         ++key) {
      const std::int64_t at = address(row, g, key);
      for (std::int64_t byte = 0; byte < case_.strides[g] / case_.rules[g].page_tokens; ++byte) {
        const Stamp expected{row.sequence.value, static_cast<std::int32_t>(key)};
        ASSERT_EQ(memory_[at + byte], expected) << "group " << g;
      }
    }
  }

  const Case& case_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> table_;
  std::map<std::int64_t, Stamp> memory_;
  std::map<std::uint32_t, Stamp> last_output_;
};

struct Client {
  RequestInfo info;
  int stop_after = 0;  // outputs after which the engine says finished; 0: never
  int outputs = 0;     // accepted
  int scored = 0;
  bool over = false;
};

class Simulation {
 public:
  explicit Simulation(const Case& parameters) : case_(parameters), random_(parameters.seed), device_(case_) {
    kv::PoolConfig config;
    config.plan = kv::plan_slabs(case_.strides, 0).value();
    case_.strides = config.plan.page_strides;
    config.slabs = std::max(case_.slabs, config.plan.least_slabs());
    for (const kv::GroupRule& rule : case_.rules)
      config.groups.push_back({std::string(to_string(rule.keep)), rule});
    pool_ = kv::PagePool::create(std::move(config)).value();
    Result<std::unique_ptr<Scheduler>> made = Scheduler::create(case_.config, *pool_);
    if (made.ok()) scheduler_ = std::move(made).value();
  }

  // False when the pool is too small for any request.
  bool run(int requests) {
    if (scheduler_ == nullptr) return false;
    int steps = 0;
    while (requests > 0 || scheduler_->has_work()) {
      EXPECT_LT(++steps, 20000) << "no end";
      if (steps >= 20000) return true;
      while (requests > 0 && random_() % 3 == 0) {
        submit();
        --requests;
      }
      if (random_() % 20 == 0 && !clients_.empty()) cancel();
      const std::size_t ahead = case_.overlap ? 2 : 1;
      while (flying_.size() < ahead) {
        const StepPlan* plan = scheduler_->plan();
        check("plan");
        // Asking again before the commit is legal and must not run ahead of tokens that are not known yet.
        if (plan == nullptr) plan = scheduler_->plan();
        if (plan == nullptr) break;
        log_ += to_string(*plan);
        check_plan(*plan);
        device_.run(*plan);
        flying_.push_back(plan);
      }
      if (!flying_.empty()) commit();
      if (::testing::Test::HasFailure()) return true;
    }
    EXPECT_TRUE(pool_->idle());
    for (const auto& [id, client] : clients_) EXPECT_TRUE(client.over) << id;
    return true;
  }
  const std::string& log() const { return log_; }
  std::int64_t retractions() const { return scheduler_->retractions(); }

 private:
  void submit() {
    Client client;
    client.info.sequence = SequenceId{next_id_++};
    client.info.prompt_tokens = 1 + static_cast<int>(random_() % (random_() % 2 == 0 ? 8 : 60));
    client.info.max_new_tokens = 1 + static_cast<int>(random_() % 40);
    client.info.score = random_() % 6 == 0;
    client.stop_after = random_() % 2 == 0 ? 1 + static_cast<int>(random_() % 40) : 0;
    if (scheduler_->submit(client.info).ok()) clients_[client.info.sequence.value] = client;
  }
  void cancel() {
    auto at = clients_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_() % clients_.size()));
    EXPECT_EQ(scheduler_->cancel(at->second.info.sequence), !at->second.over);
    at->second.over = true;
    check("cancel");
  }
  void commit() {
    const StepPlan& plan = *flying_.front();
    std::vector<RowResult> results;
    for (const PlanRow& row : plan.rows) {
      Client& client = clients_[row.sequence.value];
      EXPECT_EQ(scheduler_->is_live(row.sequence), !client.over);
      RowResult result;
      if (!client.over) {
        result.accepted = row.yields_token ? 1 : 0;
        if (row.yields_token) {
          EXPECT_EQ(row.output_index, client.outputs);
        }
        client.outputs += result.accepted;
        result.finished = row.yields_token && client.outputs == client.stop_after;
        if (client.info.score && row.logits_count > 0) {
          EXPECT_EQ(row.logits_begin, client.scored);
          client.scored += row.logits_count;
        }
      }
      results.push_back(result);
    }
    for (const Ended& ended : scheduler_->commit(results)) {
      Client& client = clients_[ended.sequence.value];
      EXPECT_FALSE(client.over);
      client.over = true;
      if (ended.reason == EndReason::length) {
        EXPECT_EQ(client.outputs, client.info.max_new_tokens);
      }
      if (ended.reason == EndReason::scored) {
        EXPECT_EQ(client.scored, client.info.prompt_tokens);
      }
      if (ended.reason == EndReason::finished) {
        EXPECT_EQ(client.outputs, client.stop_after);
      }
    }
    flying_.pop_front();
    check("commit");
  }
  void check(const char* when) {
    ASSERT_EQ(scheduler_->audit(), std::vector<std::string>())
        << when << "\n"
        << log_.substr(log_.size() > 4000 ? log_.size() - 4000 : 0);
  }
  void check_plan(const StepPlan& plan) {
    ASSERT_TRUE(kv::check_step(*pool_, scheduler_->table(), plan.updates).empty());
    ASSERT_LE(plan.total_q - plan.decode_q, case_.config.chunk_tokens);
    ASSERT_LE(plan.rows.size(), static_cast<std::size_t>(case_.config.max_running));
    std::set<std::uint32_t> sequences;
    std::int32_t rows = 0;
    for (const PlanRow& row : plan.rows) {
      ASSERT_TRUE(sequences.insert(row.sequence.value).second);
      ASSERT_EQ(row.first_row, rows);
      ASSERT_GE(row.query_count, 1);
      ASSERT_LE(row.visible.tokens, row.allocated.tokens);
      rows += row.query_count;
    }
    ASSERT_EQ(rows, plan.total_q);
    ASSERT_TRUE(std::is_sorted(plan.rows.begin(), plan.rows.end(),
                               [](const PlanRow& a, const PlanRow& b) { return a.kind < b.kind; }));
  }

  Case case_;
  std::mt19937_64 random_;
  Device device_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::uint32_t, Client> clients_;
  std::deque<const StepPlan*> flying_;
  std::uint32_t next_id_ = 1;
  std::string log_;
};

Case make_case(std::uint64_t seed, int page, bool overlap) {
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(page));
  Case result;
  result.seed = seed;
  result.page = page;
  result.overlap = overlap;
  result.rules = {{kv::Keep::all, 0, page}};
  result.strides = {page * 2};
  if (seed % 3 > 0) {
    result.rules.push_back({kv::Keep::window, 1 + static_cast<int>(random() % 30), page});
    result.strides.push_back(page * 3);
  }
  if (seed % 3 > 1) {
    result.rules.push_back({kv::Keep::chunk, 1 + static_cast<int>(random() % 30), page});
    result.strides.push_back(page * 1);
  }
  // From "one request fills it" to roomy.
  const std::int64_t slab = kv::plan_slabs(result.strides, 0)->slab_bytes;
  const auto tokens = static_cast<std::int64_t>(20 + random() % 300);
  result.slabs = static_cast<std::int64_t>(result.rules.size()) + 1 + tokens * 3 / slab;
  result.config.max_running = 1 + static_cast<int>(random() % 6);
  result.config.chunk_tokens = 1 + static_cast<int>(random() % 40);
  result.config.max_context = 100;
  result.config.max_waiting = 1 + static_cast<int>(random() % 10);
  return result;
}

TEST(Simulation, EveryStepReadsWhatItsSequenceWrote) {
  std::int64_t retractions = 0;
  int served = 0;
  for (const int page : {1, 2, 7, 16, 64, 256}) {
    for (const bool overlap : {false, true}) {
      for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(::testing::Message() << "page " << page << " overlap " << overlap << " seed " << seed);
        Simulation simulation(make_case(seed, page, overlap));
        if (!simulation.run(25)) continue;
        ++served;
        retractions += simulation.retractions();
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
  std::printf("%d simulations, %lld retractions\n", served, static_cast<long long>(retractions));
  EXPECT_GT(served, 400);
  EXPECT_GT(retractions, 100);
}

TEST(Simulation, SameRequestsSamePlans) {
  for (const int page : {1, 7, 64}) {
    const Case parameters = make_case(5, page, true);
    Simulation first(parameters);
    Simulation second(parameters);
    ASSERT_EQ(first.run(40), second.run(40));
    EXPECT_FALSE(first.log().empty());
    EXPECT_EQ(first.log(), second.log());
  }
}

}  // namespace
}  // namespace quire::scheduler
