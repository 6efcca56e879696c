// Selection: one row per call, and the page size solved together with them. A pure function; it needs no
// device and no weights. Nothing is ever rewritten: what the user fixed is kept or refused.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/caps.h"

namespace quire::attention {

// A call as a model declares it. problem.page_size and .order are filled by select().
struct Call {
  std::string name;  // "full.decode"
  int group = 0;     // KV group
  int layers = 0;    // how many layers make it
  Problem problem;
};

struct Wish {
  // Row names as the user pinned them; empty: free. The more specific one wins.
  std::string all;                                            // --attention-backend
  std::string prefill;                                        // --prefill-attention-backend
  std::string decode;                                         // --decode-attention-backend
  std::vector<std::pair<std::string, std::string>> per_call;  // --attention CALL=NAME
  int page_size = 0;                                          // 0: auto
  std::optional<PageOrder> order;
  Determinism minimum = Determinism::none;  // --deterministic
};

struct Refusal {
  std::string row;
  Reason reason;
};

struct Pick {
  Call call;  // with the page size and order solved
  const Backend* backend = nullptr;
  bool pinned = false;            // the user named the row
  std::vector<Refusal> refused;   // every other row that cannot serve it
  std::vector<std::string> able;  // every other row that could
};

struct Selection {
  std::vector<Pick> picks;
  int page_size = 0;
  std::string page_because;  // "recommended by cpu" / "asked for" / ...
  PageOrder order = PageOrder::page_first;
  Determinism determinism = Determinism::none;  // minimum over the picks
};

// Fails when a call has no row (the message lists every row with its Reason) or the page rules of the
// chosen rows have no common size (names the two that clash).
Result<Selection> select(std::span<const Backend> table, const std::vector<Call>& calls, const Wish& wish,
                         PageOrder default_order);

// One line for the page size and one per call: the choice, and why each other row was refused.
std::string explain(const Selection& selection);

}  // namespace quire::attention
