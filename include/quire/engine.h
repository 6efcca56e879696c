// Engine: token ids in, token ids out, over one model on one device. The library's lower level; session.h
// adds text.
//
// Life: Engine::open loads a model; submit() queues requests; step() runs the one loop body and returns
// what became known. One thread at a time, for all calls. Two engines in one process are fine.
// Errors: Result. A request that can never run is refused by submit() with the numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/guide.h"
#include "quire/options.h"
#include "quire/page_map.h"
#include "quire/result.h"

namespace quire {

// How the next token is drawn. Order: penalties, bias, temperature, top-k, top-p, min-p, draw.
struct Sampling {
  float temperature = 0.0f;  // 0: greedy, ties to the lower id
  std::int32_t top_k = 0;    // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output
  float frequency_penalty = 0.0f;   // over output
  float presence_penalty = 0.0f;
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::uint64_t seed = 0;
};

using RequestId = std::uint64_t;

struct Request {
  std::vector<std::int32_t> prompt;  // at least one token, at most the context (which leaves one to answer)
  std::int32_t max_tokens = 0;       // 0: as many as the context and the KV memory allow
  Sampling sampling;
  std::vector<std::int32_t> stop_tokens;  // end the answer; not part of it. Usually the model's end tokens
  std::uint64_t sequence_index = 0;       // keys the random draw together with the seed
  std::int32_t priority = 0;              // 0..63, higher first (Options::schedule "priority")
  // Since submit; not finished by then, it ends (Finish::deadline). 0: none; else a microsecond or more.
  double deadline_s = 0.0;
  std::string cache_salt;  // prefixes are shared only between requests with the same one
  // Scoring: log-probabilities of the prompt's tokens, before the answer or (answer false) instead of one;
  // then max_tokens is ignored.
  bool score = false;
  bool answer = true;
  std::int32_t score_top = 0;  // most likely tokens to report per position
  // Log-probabilities of the answer's tokens. -1: none; 0 to 20: of each, and of so many most likely ones.
  std::int32_t logprobs = -1;
  std::shared_ptr<Guide> guide;  // what the answer may be; null: anything. Its state is this request's alone
};

// failed: there is no token to go on with; Output::error says why.
enum class Finish : std::uint8_t { none, stop, length, context, cancelled, failed, deadline };

std::string_view to_string(Finish finish);  // "stop", "length", ...: the names above

struct Scored {          // of the distribution after prompt token i
  float logprob = 0.0f;  // of prompt token i + 1; NaN for the last
  std::int32_t argmax = 0;
  std::vector<std::pair<std::int32_t, float>> top;
};

// Of one token of an answer, by the distribution as the model gives it: before penalties, bias, guide,
// temperature and cuts. Scoring prompt and answer together gives the same numbers.
struct TokenLogprob {
  float logprob = 0.0f;
  std::vector<std::pair<std::int32_t, float>> top;  // Request::logprobs many, the most likely first
};

// What one step made known about one request.
struct Output {
  RequestId id = 0;
  std::vector<std::int32_t> tokens;    // new tokens, in order
  std::vector<TokenLogprob> logprobs;  // of each of them, when asked for
  std::vector<Scored> scored;          // new scored positions, in order
  Finish finish = Finish::none;
  std::string error;               // with Finish::failed: why
  std::string guide_problem;       // and Guide::problem(), where that is why: the request's own fault
  std::int32_t prompt_tokens = 0;  // with finish: totals
  std::int32_t completion_tokens = 0;
  // With the first token, and with finish:
  std::int32_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  std::string cache_miss;      // why it was not more: "none", "no_prefix", "evicted at 17 for growth", ...
  double queued_s = 0.0;       // from submit until it first ran
  double first_token_s = 0.0;  // with finish: since submit
  double finish_s = 0.0;
};

struct LedgerLine {
  std::string owner;
  std::int64_t bytes = 0;
  bool mapped = false;  // file pages, shared and reclaimable
  bool host = false;    // page-locked host memory beside a device with memory of its own
};

struct CallInfo {
  std::string call;     // "full.decode"
  std::string backend;  // "cpu"
};

struct EngineInfo {
  std::string architecture;
  std::string device;
  std::int32_t page_size = 0;
  std::int32_t max_context = 0;
  std::int32_t max_running = 0;
  std::int64_t kv_capacity_tokens = 0;
  std::string determinism;
  std::vector<CallInfo> calls;
  std::vector<LedgerLine> ledger;  // before the first token: every byte has an owner
  std::vector<std::string> notes;  // "12 16-bit matrices are expanded to f32 at load: ..."
  std::vector<std::string> trace;  // why each decision of resolve() fell as it did
  double load_s = 0.0;
};

struct RecordStats {  // Options::record
  std::string path;   // of the file; empty: nothing is recorded
  std::int64_t steps = 0;
  std::int64_t bytes = 0;
  std::string ended;  // why it ended before the engine did; empty: it did not
};

// Where a shadow row's results differ most from those that the model went on with.
struct ShadowPlace {
  double error = 0.0;
  std::uint64_t step = 0;
  std::string call;
  std::int32_t layer = 0;
  std::int32_t row = 0;  // token row of the step
  std::int32_t head = 0;
};

struct ShadowStats {            // Options::shadow
  std::string backend;          // empty: no shadow
  std::int64_t steps = 0;       // shadowed
  std::int64_t calls = 0;       // attention calls compared
  std::int64_t calls_over = 0;  // whose relative Frobenius error is over twice the gate of one row
  double frobenius = 0.0;       // the worst of a call, against its gate
  double frobenius_gate = 0.0;
  ShadowPlace max_abs;
  ShadowPlace max_rel;         // over the largest value of the row and head
  double seconds = 0.0;        // of the shadow row
  double first_seconds = 0.0;  // of the first rows in the same calls
  double compare_seconds = 0.0;
  double share = 0.0;  // of the time in step(): the shadow row with its comparison
};

// Live counts, for reports and tests.
struct EngineStats {
  std::int64_t steps = 0;
  std::int64_t replayed_steps = 0;    // decode steps that ran a recorded graph
  std::int64_t prompt_tokens = 0;     // computed
  std::int64_t cached_tokens = 0;     // not computed, but found in the prefix cache
  std::int64_t looked_up_tokens = 0;  // in the prefix cache, when requests were admitted
  // Requests by why no more of their prompt was cached when first admitted: all reasons, in one order.
  std::vector<std::pair<std::string, std::int64_t>> why_miss;
  std::int64_t output_tokens = 0;
  std::int64_t retractions = 0;
  std::vector<std::int64_t> pages_in_use;  // per KV group
  std::vector<std::int64_t> pages_peak;    // per KV group
  std::vector<std::int64_t> pages_cached;  // of those in use, the prefix cache's own
  std::vector<std::int64_t> pages_most;    // that each group could have if it were alone
  // Of the KV memory: in pages that requests hold or that cannot be evicted for them; and all in use.
  double kv_held = 0.0;
  double kv_used = 0.0;
  std::int64_t pages_evicted = 0;
  double device_busy_s = 0.0;
  double host_step_s = 0.0;  // scheduler, tables, upload, commit
  RecordStats record;
  ShadowStats shadow;
};

// A whole page of the prefix cache came or went, for whoever routes requests to where their prefix is. A page
// is named by a hash of its tokens and all before them (docs/PREFIX_CACHE.md, "Events", has the formula).
struct KvEvent {
  enum class Kind : std::uint8_t { stored, removed, cleared };  // cleared: no page is left
  Kind kind = Kind::stored;
  std::uint64_t hash = 0;
  std::uint64_t before = 0;  // of the page before it; of the first page: the seed of its namespace
};

struct KvEvents {
  std::int32_t version = 1;  // of the formula
  // Number of the first event here; they count from 0. Not the one that was asked for: the events between are
  // forgotten (65,536 are kept), or this is another engine. Then an account of the cache starts anew, empty,
  // or with clear_prefix_cache().
  std::uint64_t first = 0;
  std::uint64_t next = 0;  // to ask for next time
  std::vector<KvEvent> events;
};

// The queue of requests that wait for a place among those that run.
struct Queue {
  std::int32_t waiting = 0;
  std::int32_t room = 0;  // so many more submit() takes; step() makes room
  std::int32_t running = 0;
};

class Engine {
 public:
  // `model`: a Hugging Face folder or a .gguf file.
  static Result<std::unique_ptr<Engine>> open(const std::string& model, const Options& options);
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats stats() const = 0;
  // Refuses what can never run, and what the queue has no room for now.
  virtual Result<RequestId> submit(Request request) = 0;
  // What submit() says of a request when the queue has room.
  virtual Status check(const Request& request) const = 0;
  virtual Queue queue() const = 0;
  virtual void cancel(RequestId id) = 0;
  // Runs one step and appends what became known. False when there is nothing to do.
  virtual bool step(std::vector<Output>& outputs) = 0;
  // Clears `outputs` and keeps their memory for the next steps: with it a steady decode step allocates
  // nothing.
  virtual void recycle(std::vector<Output>& outputs);
  // Fills `map` with who has which page now; memory of an earlier call is used again. Walks all pages, so it
  // costs about a millisecond for 100,000 of them: for looking, not for every step.
  virtual void page_map(PageMap& map) const = 0;
  // What happened to the pages of the prefix cache since event number `since`. Empty without a cache.
  virtual KvEvents kv_events(std::uint64_t since) const;
  // Forgets every prefix that no request uses now.
  virtual void clear_prefix_cache();
  // The conservation checker's findings; empty when every page, slot and count has its owner. At idle it also
  // proves that everything was given back.
  virtual std::vector<std::string> audit() = 0;
};

}  // namespace quire
