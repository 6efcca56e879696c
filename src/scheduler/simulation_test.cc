// Random traffic against a model of the device: every key that a step reads must be that of the sequence's
// own tokens up to it, whatever was shared, copied, retracted, cancelled, voided or handed on meanwhile, and
// the output must be what the tokens alone decide.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "kv/audit.h"
#include "kv/page_hash.h"
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

using Tokens = std::vector<std::int32_t>;

std::uint64_t chain(std::uint64_t before, std::int32_t token) {
  return kv::mix_hash(before, static_cast<std::uint32_t>(token));
}
// The model: two letters, decided by everything before.
std::int32_t next_token(std::uint64_t prefix) { return static_cast<std::int32_t>(prefix >> 17 & 1); }

// What the device holds: in each page per token the hash of all tokens up to it, the copy of the tables, and
// per slot the tokens so far.
class Device {
 public:
  explicit Device(const Case& parameters) : case_(parameters) {}

  // `literals`: what the host knows of the row's sequence.
  template <class Literals>
  void run(const StepPlan& plan, Literals literals) {
    for (const PageCopy& copy : plan.copies) run_copy(copy);
    for (const kv::TableUpdate& update : plan.updates) {
      table_[{update.slot.value, update.group.value, update.entry}] = update.page.value;
    }
    for (const PlanRow& row : plan.rows) {
      take_input(row, literals(row.sequence));
      for (std::size_t g = 0; g < case_.rules.size(); ++g) write(row, g);
      for (std::size_t g = 0; g < case_.rules.size(); ++g) read(row, g);
    }
  }
  // Of a row that yields one, after run(): the token behind its last one.
  std::int32_t sampled(const PlanRow& row) {
    return next_token(slots_[row.slot.value].at(static_cast<std::size_t>(row.visible.tokens - 1)));
  }

 private:
  void take_input(const PlanRow& row, const Tokens& known) {
    std::vector<std::uint64_t>& slot = slots_[row.slot.value];
    if (row.opens_slot) {
      slot.clear();
      for (std::int32_t t = 0; t < row.query_begin; ++t)
        slot.push_back(chain(slot.empty() ? 0 : slot.back(), known[static_cast<std::size_t>(t)]));
    }
    ASSERT_EQ(slot.size(), static_cast<std::size_t>(row.query_begin));
    for (std::int32_t t = row.query_begin; t < row.visible.tokens; ++t) {
      const std::uint64_t before = slot.empty() ? 0 : slot.back();
      const bool literal = row.input == Input::literal;
      slot.push_back(chain(before, literal ? known[static_cast<std::size_t>(t)] : next_token(before)));
    }
  }
  std::int64_t token_bytes(std::size_t g) const { return case_.strides[g] / case_.rules[g].page_tokens; }
  // Bytes of a token in the arena: a group's pages overlap other groups' when the accounting is wrong.
  std::int64_t address(const PlanRow& row, std::size_t g, std::int64_t key) {
    const std::int64_t page = case_.rules[g].page_tokens;
    const std::uint32_t id =
        table_[{row.slot.value, static_cast<std::uint32_t>(g), static_cast<std::uint32_t>(key / page)}];
    EXPECT_NE(id, 0u) << "sequence " << row.sequence.value << " key " << key << " of group " << g;
    return id * case_.strides[g] + key % page * token_bytes(g);
  }
  void run_copy(const PageCopy& copy) {
    const std::size_t g = copy.group.value;
    ASSERT_LT(copy.tokens, case_.rules[g].page_tokens);
    for (std::int64_t byte = 0; byte < copy.tokens * token_bytes(g); ++byte)
      memory_[copy.to.value * case_.strides[g] + byte] = memory_[copy.from.value * case_.strides[g] + byte];
  }
  void write(const PlanRow& row, std::size_t g) {
    for (std::int64_t key = row.query_begin; key < row.visible.tokens; ++key) {
      const std::int64_t at = address(row, g, key);
      for (std::int64_t byte = 0; byte < token_bytes(g); ++byte)
        memory_[at + byte] = slots_[row.slot.value][static_cast<std::size_t>(key)];
    }
  }
  void read(const PlanRow& row, std::size_t g) {
    for (std::int64_t key = kv::visible_begin(case_.rules[g], row.query_begin); key < row.visible.tokens;
         ++key) {
      const std::int64_t at = address(row, g, key);
      for (std::int64_t byte = 0; byte < token_bytes(g); ++byte) {
        ASSERT_EQ(memory_[at + byte], slots_[row.slot.value][static_cast<std::size_t>(key)])
            << "group " << g << " key " << key << " of sequence " << row.sequence.value;
      }
    }
  }

  const Case& case_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> table_;
  std::map<std::int64_t, std::uint64_t> memory_;
  std::map<std::uint32_t, std::vector<std::uint64_t>> slots_;
};

struct Client {
  RequestInfo info;
  Tokens tokens;       // prompt, then output
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
      expire();
      const std::size_t ahead = case_.overlap ? 2 : 1;
      while (flying_.size() < ahead) {
        const StepPlan* plan = scheduler_->plan();
        check("plan");
        // Asking again before the commit is legal and must not run ahead of tokens that are not known yet.
        if (plan == nullptr) plan = scheduler_->plan();
        if (plan == nullptr) break;
        log_ += to_string(*plan);
        check_plan(*plan);
        for (const Admission& admission : plan->admitted) hits_ += admission.cached_tokens;
        copies_ += static_cast<std::int64_t>(plan->copies.size());
        device_.run(*plan, [this](SequenceId id) -> const Tokens& { return clients_.at(id.value).tokens; });
        std::vector<std::int32_t> sampled;
        for (const PlanRow& row : plan->rows) sampled.push_back(row.yields_token ? device_.sampled(row) : -1);
        samples_.push_back(sampled);
        flying_.push_back(plan);
      }
      if (!flying_.empty()) commit();
      if (::testing::Test::HasFailure()) return true;
    }
    for (const auto& [id, client] : clients_) check_output(client);
    scheduler_->clear_cache();
    EXPECT_TRUE(pool_->idle());
    EXPECT_EQ(scheduler_->tree().stats().nodes, 0);
    return true;
  }
  const std::string& log() const { return log_; }
  std::int64_t retractions() const { return scheduler_->retractions(); }
  std::int64_t hits() const { return hits_; }
  std::int64_t copies() const { return copies_; }

 private:
  void submit() {
    const std::uint32_t id = next_id_++;
    Client& client = clients_[id];
    client.info.sequence = SequenceId{id};
    client.info.prompt_tokens = 1 + static_cast<int>(random_() % (random_() % 2 == 0 ? 8 : 60));
    client.info.max_new_tokens = 1 + static_cast<int>(random_() % 40);
    client.info.score = random_() % 6 == 0;
    client.info.answer = !client.info.score || random_() % 2 == 0;
    client.info.guided = random_() % 4 == 0;
    client.info.priority = static_cast<int>(random_() % 3);
    client.info.deadline_us = random_() % 10 == 0 ? now_ + 1 + static_cast<int>(random_() % 30) : 0;
    client.stop_after = random_() % 2 == 0 ? 1 + static_cast<int>(random_() % 40) : 0;
    // Prompts share beginnings with each other, and some go on from an earlier answer.
    if (random_() % 4 == 0 && id > 1) client.tokens = clients_.at(1 + random_() % (id - 1)).tokens;
    client.tokens.resize(std::min<std::size_t>(client.tokens.size(), 50));
    const auto known = static_cast<std::int32_t>(client.tokens.size());
    client.info.prompt_tokens = std::min(60, client.info.prompt_tokens + known);
    const auto calm = static_cast<std::int32_t>(random_() % 60);
    for (std::int32_t t = known; t < client.info.prompt_tokens; ++t)
      client.tokens.push_back(t < calm ? 1 : static_cast<std::int32_t>(random_() % 2));
    client.tokens.reserve(200);
    client.info.tokens = random_() % 12 > 0 ? client.tokens.data() : nullptr;
    const kv::NamespaceKey other{"", "", "tenant", ""};
    if (random_() % 3 == 0) client.info.space = &other;
    client.over = !scheduler_->submit(client.info).ok();
  }
  void check_output(const Client& client) {
    EXPECT_TRUE(client.over) << client.info.sequence.value;
    std::uint64_t prefix = 0;
    for (std::size_t t = 0; t < client.tokens.size(); ++t) {
      if (t >= static_cast<std::size_t>(client.info.prompt_tokens)) {
        EXPECT_EQ(client.tokens[t], next_token(prefix))
            << "sequence " << client.info.sequence.value << " " << t;
      }
      prefix = chain(prefix, client.tokens[t]);
    }
  }
  void cancel() {
    auto at = clients_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_() % clients_.size()));
    EXPECT_EQ(scheduler_->cancel(at->second.info.sequence), !at->second.over);
    at->second.over = true;
    check("cancel");
  }
  void expire() {
    for (const SequenceId id : scheduler_->expire(++now_)) {
      EXPECT_FALSE(clients_.at(id.value).over);
      clients_.at(id.value).over = true;
    }
    for (const auto& [id, client] : clients_) {
      EXPECT_TRUE(client.over || client.info.deadline_us == 0 || client.info.deadline_us >= now_) << id;
    }
    check("expire");
  }
  void commit() {
    const StepPlan& plan = *flying_.front();
    std::vector<RowResult> results;
    for (std::size_t r = 0; r < plan.rows.size(); ++r) {
      const PlanRow& row = plan.rows[r];
      Client& client = clients_[row.sequence.value];
      EXPECT_EQ(scheduler_->is_live(row.sequence), !client.over);
      RowResult result;
      if (!client.over) {
        result.accepted = row.yields_token ? 1 : 0;
        if (row.yields_token) {
          EXPECT_EQ(row.output_index, client.outputs);
        }
        client.outputs += result.accepted;
        if (row.yields_token) client.tokens.push_back(samples_.front()[r]);
        result.finished = row.yields_token && client.outputs == client.stop_after;
        if (client.info.score && client.scored < client.info.prompt_tokens && row.logits_count > 0) {
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
    samples_.pop_front();
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
      const Client& client = clients_.at(row.sequence.value);
      if (client.info.guided && row.yields_token) {
        ASSERT_EQ(row.output_index, client.outputs) << "a token before this one is not known";
      }
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
  std::deque<std::vector<std::int32_t>> samples_;  // per step in flight and row
  std::int64_t now_ = 0;
  std::int64_t hits_ = 0;
  std::int64_t copies_ = 0;
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
  result.config.policy = static_cast<Policy>(random() % 3);
  result.config.aging_plans = 1 + static_cast<int>(random() % 50);
  result.config.hold_tokens = static_cast<int>(random() % 8);
  result.config.cache.enabled = seed % 5 > 0;
  result.config.cache.policy = static_cast<kv::EvictionPolicy>(random() % 4);
  result.config.cache.copy_min_tokens = 1 + static_cast<int>(random() % 4);
  return result;
}

TEST(Simulation, EveryStepReadsWhatItsSequenceWrote) {
  std::int64_t retractions = 0;
  std::int64_t hits = 0;
  std::int64_t copies = 0;
  int served = 0;
  for (const int page : {1, 2, 7, 16, 64, 256}) {
    for (const bool overlap : {false, true}) {
      for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(::testing::Message() << "page " << page << " overlap " << overlap << " seed " << seed);
        Simulation simulation(make_case(seed, page, overlap));
        if (!simulation.run(25)) continue;
        ++served;
        retractions += simulation.retractions();
        hits += simulation.hits();
        copies += simulation.copies();
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
  std::printf("%d simulations, %lld retractions, %lld tokens hit, %lld copies\n", served,
              static_cast<long long>(retractions), static_cast<long long>(hits),
              static_cast<long long>(copies));
  EXPECT_GT(served, 400);
  EXPECT_GT(hits, 10000);
  EXPECT_GT(copies, 500);
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
