#include "attention/select.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "attention/other_names.h"

namespace quire::attention {
namespace {

// Row `row` for `problem`, with the determinism asked for as one more condition.
std::optional<Reason> refuses(const Backend& row, const Problem& problem, Determinism minimum) {
  if (auto reason = supports(row, problem)) return reason;
  if (row.caps.determinism >= minimum) return std::nullopt;
  Reason reason;
  reason.facts[0] = reason.facts[1] = Fact::determinism;
  reason.text = fmt::format("{} is {}; this run asks for {}", row.name, to_string(row.caps.determinism),
                            to_string(minimum));
  reason.fix = fmt::format("use --deterministic {}", to_string(row.caps.determinism));
  return reason;
}

Problem at_page(Problem problem, int page) {
  problem.page_size = page;
  return problem;
}

// The page sizes at which the row serves the call, of those that the user allows. A dense call takes any.
std::vector<int> pages_of(const Backend& row, const Call& call, const Wish& wish) {
  std::vector<int> pages;
  const int first = wish.page_size ? wish.page_size : 1;
  const int last = wish.page_size ? wish.page_size : kMaxPageSize;
  for (int page = first; page <= last; ++page)
    if (!refuses(row, at_page(call.problem, page), wish.minimum)) pages.push_back(page);
  return pages;
}

// The row name that the user pinned for a call; the more specific wish wins. Empty: free.
std::string_view pin_of(const Call& call, const Wish& wish) {
  for (const auto& [name, row] : wish.per_call)
    if (name == call.name) return row;
  const std::string& by_phase = call.problem.phase == Phase::extend ? wish.prefill : wish.decode;
  return by_phase.empty() ? wish.all : by_phase;
}

template <class List, class Name>
std::string names_of(const List& list, Name name) {
  std::vector<std::string> names;
  for (const auto& item : list) names.emplace_back(name(item));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

Status check_wish(std::span<const Backend> table, const std::vector<Call>& calls, const Wish& wish) {
  if (table.empty())
    return bad_input("this platform has no attention backends in this build: use --device cpu");
  if (wish.page_size < 0 || wish.page_size > kMaxPageSize)
    return bad_input(fmt::format("page size {} is not in 1 to {}: use --page-size {}", wish.page_size,
                                 kMaxPageSize, wish.page_size < 0 ? 1 : kMaxPageSize));
  std::vector<std::string> rows{wish.all, wish.prefill, wish.decode};
  for (const auto& [call, row] : wish.per_call) {
    rows.push_back(row);
    const bool known =
        std::any_of(calls.begin(), calls.end(), [&name = call](const Call& c) { return c.name == name; });
    if (!known)
      return bad_input(fmt::format("this model has no attention call '{}'; its calls are {}", call,
                                   names_of(calls, [](const Call& c) { return c.name; })));
  }
  for (const std::string& row : rows)
    if (!row.empty() && find_backend(table, row) == nullptr)
      return bad_input(fmt::format("there is no attention backend '{}'; this build has {}{}", row,
                                   names_of(table, [](const Backend& b) { return b.name; }),
                                   name_elsewhere(row)));
  return {};
}

// Rows other than `except` that serve the call as it is.
std::vector<std::string> rows_for(std::span<const Backend> table, const Problem& problem, Determinism minimum,
                                  std::string_view except) {
  std::vector<std::string> names;
  for (const Backend& row : table)
    if (row.name != except && !refuses(row, problem, minimum)) names.emplace_back(row.name);
  return names;
}

Reason with_other_rows(Reason reason, std::span<const Backend> table, const Call& call, const Wish& wish,
                       std::string_view row) {
  const std::vector<std::string> others = rows_for(table, call.problem, wish.minimum, row);
  if (others.empty()) return reason;
  if (reason.facts[0] != Fact::page_size && reason.fix.find("--attention-backend") != std::string::npos)
    reason.fix = fmt::format("use --attention {}={}", call.name, others[0]);
  else
    reason.fix += fmt::format(" or --attention {}={}", call.name, others[0]);
  return reason;
}

Error no_row(std::span<const Backend> table, const Call& call, const Wish& wish, std::string_view pin) {
  std::string text = fmt::format("no attention backend serves the call {}", call.name);
  if (!pin.empty()) text = fmt::format("attention backend {} cannot serve the call {}", pin, call.name);
  const Problem problem = at_page(call.problem, wish.page_size ? wish.page_size : 64);
  Call shown = call;
  shown.problem = problem;
  for (const Backend& row : table) {
    const auto reason = refuses(row, problem, wish.minimum);
    if (!reason) {
      text += fmt::format("\n  {}: serves it", row.name);
      continue;
    }
    const Reason full = with_other_rows(*reason, table, shown, wish, row.name);
    text += fmt::format("\n  {}: {}: {}", row.name, full.text, full.fix);
  }
  return bad_input(std::move(text));
}

struct Chosen {
  const Backend* row = nullptr;
  std::vector<int> pages;
};

Result<Chosen> choose(std::span<const Backend> table, const Call& call, const Wish& wish) {
  const std::string_view pin = pin_of(call, wish);
  for (const Backend& row : table) {
    if (!pin.empty() && row.name != pin) continue;
    std::vector<int> pages = pages_of(row, call, wish);
    if (!pages.empty()) return Chosen{&row, std::move(pages)};
  }
  return no_row(table, call, wish, pin);
}

std::vector<int> intersect(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

std::string pages_text(const std::vector<int>& pages) {
  if (pages.size() > 8) return fmt::format("{} to {} ({} sizes)", pages.front(), pages.back(), pages.size());
  return fmt::format("{}", fmt::join(pages, ", "));
}

// The pages that all calls take. Empty: `clash` names the two calls that exclude each other.
std::vector<int> common_pages(const std::vector<Call>& calls, const std::vector<Chosen>& chosen,
                              std::string& clash) {
  std::vector<int> common = chosen[0].pages;
  for (std::size_t i = 1; i < chosen.size(); ++i) {
    common = intersect(common, chosen[i].pages);
    if (!common.empty()) continue;
    std::size_t other = 0;
    for (std::size_t j = 0; j < i; ++j)
      if (intersect(chosen[j].pages, chosen[i].pages).empty()) other = j;
    clash = fmt::format(
        "no page size suits both {} of {} (pages {}) and {} of {} (pages {}): pin another row for one of "
        "them "
        "with --attention CALL=NAME",
        chosen[other].row->name, calls[other].name, pages_text(chosen[other].pages), chosen[i].row->name,
        calls[i].name, pages_text(chosen[i].pages));
    return {};
  }
  return common;
}

int solve_page(const std::vector<int>& common, const std::vector<Chosen>& chosen, const Wish& wish,
               std::string& because) {
  if (wish.page_size) {
    because = "asked for";
    return wish.page_size;
  }
  for (const Chosen& c : chosen) {
    const int page = c.row->caps.recommended_page;
    if (page == 0 || !std::binary_search(common.begin(), common.end(), page)) continue;
    because = fmt::format("recommended by {}", c.row->name);
    if (!c.row->caps.recommended_because.empty())
      because += fmt::format(": {}", c.row->caps.recommended_because);
    return page;
  }
  const auto nearest = std::min_element(common.begin(), common.end(),
                                        [](int a, int b) { return std::abs(a - 64) < std::abs(b - 64); });
  because = *nearest == 64 ? "the default" : "the legal size nearest to the default of 64";
  return *nearest;
}

Pick make_pick(std::span<const Backend> table, const Call& call, const Backend* row, const Wish& wish) {
  Pick pick;
  pick.call = call;
  pick.backend = row;
  pick.pinned = !pin_of(call, wish).empty();
  for (const Backend& other : table) {
    if (&other == row) continue;
    if (auto reason = refuses(other, call.problem, wish.minimum))
      pick.refused.push_back(
          {std::string(other.name), with_other_rows(*reason, table, call, wish, other.name)});
    else
      pick.able.emplace_back(other.name);
  }
  return pick;
}

}  // namespace

Result<Selection> select(std::span<const Backend> table, const std::vector<Call>& calls, const Wish& wish,
                         PageOrder default_order) {
  QUIRE_TRY_STATUS(check_wish(table, calls, wish));
  Selection selection;
  selection.order = wish.order.value_or(default_order);
  std::vector<Call> ordered = calls;
  std::vector<Chosen> chosen;
  for (Call& call : ordered) {
    call.problem.order = selection.order;
    QUIRE_TRY(row, choose(table, call, wish));
    chosen.push_back(std::move(row));
  }
  if (chosen.empty()) return bad_input("this model makes no attention calls");
  std::string clash;
  const std::vector<int> common = common_pages(ordered, chosen, clash);
  if (common.empty()) return bad_input(std::move(clash));
  selection.page_size = solve_page(common, chosen, wish, selection.page_because);
  selection.determinism = Determinism::schedule_invariant;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    ordered[i].problem.page_size = selection.page_size;
    selection.picks.push_back(make_pick(table, ordered[i], chosen[i].row, wish));
    selection.determinism = std::min(selection.determinism, chosen[i].row->caps.determinism);
  }
  return selection;
}

std::string explain(const Selection& selection) {
  std::string text =
      fmt::format("page size {} ({}), order {}, attention determinism {}\n", selection.page_size,
                  selection.page_because, to_string(selection.order), to_string(selection.determinism));
  for (const Pick& pick : selection.picks) {
    text += fmt::format("{} ({} layer{}): {}{}", pick.call.name, pick.call.layers,
                        pick.call.layers == 1 ? "" : "s", pick.backend->name, pick.pinned ? " (pinned)" : "");
    if (!pick.able.empty()) text += fmt::format("; could also: {}", fmt::join(pick.able, ", "));
    for (const Refusal& refusal : pick.refused)
      text += fmt::format("\n  not {}: {}; {}", refusal.row, refusal.reason.text, refusal.reason.fix);
    text += '\n';
  }
  return text;
}

}  // namespace quire::attention
