// Planted faults: the judge is judged. Each is a backend bug that has happened somewhere, imitated around
// a real row by giving it wrong inputs or spoiling its outputs, so no kernel carries a hook. verify must
// fail under each of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "attention/caps.h"
#include "attention/merge.h"

namespace quire::conformance {

enum class FaultId : std::uint8_t {
  mask_off_by_one,
  kv_len_stale,
  window_off_by_one,
  chunk_border,
  dropped_split,
  swapped_pages,
  page_id_16_bits,
  stale_scale,
  v_scale_missing,
  sink_twice,
  sink_missing,
  softcap_missing,
  window_from_slot,
  tree_depth_ignored,
  tree_bits_shifted,
  unzeroed_v_tail,
  padded_row_reads_page_0,
  idle_rows_not_zeroed,
  part_begin_ignored,
  part_end_ignored,
  lse_without_max,
  lse_with_sink,
  wrong_kv_head,
  latent_v_stride,
  q_descale_missing,
  sparse_ignored,
  batch_dependent,
  merge_weight_wrong,
  workspace_overrun,
};

struct Fault {
  FaultId id;
  std::string_view name;
  std::string_view description;
};

std::span<const Fault> faults();
const Fault* find_fault(std::string_view name);
// "NAME  what it is", one line each: what an unknown name is answered with.
std::string fault_list();

// Whether calls like this one can show the fault.
bool can_show(const Fault& fault, const attention::Problem& problem);

// `inner` as the fault would make it. `inner` takes host memory (on_device.h); the caller synchronizes after
// each run.
std::unique_ptr<attention::Attention> with_fault(const Fault& fault, const attention::Problem& problem,
                                                 std::unique_ptr<attention::Attention> inner);
// attention::merge, spoiled when the fault is one of merge.
void merge_with_fault(const Fault* fault, const attention::MergeArgs& args, platform::Stream& stream);

}  // namespace quire::conformance
