#include "scheduler/step_plan.h"

#include <fmt/core.h>

namespace quire::scheduler {
namespace {

std::string row_text(const StepPlan& plan, const PlanRow& row) {
  std::string text = fmt::format(
      "  {} sequence {} slot {}{} tokens [{}, {}) kv {}/{} from {}", to_string(row.kind), row.sequence.value,
      row.slot.value, row.opens_slot ? " (new)" : "", row.query_begin, row.query_begin + row.query_count,
      row.visible.tokens, row.allocated.tokens, row.input == Input::literal ? "literals" : "last output");
  if (row.logits_count > 0) {
    text += fmt::format(" logits [{}, {})", row.logits_begin, row.logits_begin + row.logits_count);
  }
  if (row.yields_token) text += fmt::format(" gives output {}", row.output_index);
  for (std::int32_t i = row.updates_begin; i < row.updates_begin + row.updates_count; ++i) {
    const kv::TableUpdate& update = plan.updates[static_cast<std::size_t>(i)];
    text += fmt::format(" g{}[{}]={}", update.group.value, update.entry, update.page.value);
  }
  return text + "\n";
}

}  // namespace

std::string_view to_string(RowKind kind) {
  switch (kind) {
    case RowKind::decode:
      return "decode";
    case RowKind::verify:
      return "verify";
    case RowKind::extend:
      return "extend";
  }
  return "unknown";
}

std::string to_string(const StepPlan& plan) {
  std::string text =
      fmt::format("step {}: {} decode, {} verify, {} extend, {} tokens, {} logits\n", plan.step,
                  plan.decode_rows, plan.verify_rows, plan.extend_rows, plan.total_q, plan.total_logits);
  for (const Admission& admission : plan.admitted) {
    if (admission.cached_tokens > 0)
      text += fmt::format("  sequence {} has {} tokens in the cache\n", admission.sequence.value,
                          admission.cached_tokens);
  }
  for (const PageCopy& copy : plan.copies)
    text += fmt::format("  copy {} tokens of page {} to page {} of g{}\n", copy.tokens, copy.from.value,
                        copy.to.value, copy.group.value);
  for (const PlanRow& row : plan.rows) text += row_text(plan, row);
  for (const SequenceId sequence : plan.retracted)
    text += fmt::format("  retracted sequence {}\n", sequence.value);
  return text;
}

}  // namespace quire::scheduler
