// DeviceModel: how long a step takes, from what its plan holds. Five costs that add up:
//
//   step_s        every step: launches, and the weights read once
//   decode_row_s  per decode row: its products, and its share of sampling
//   key_s         per key that a decode row reads
//   prompt_s      per prompt token of a chunk
//   pair_s        per (query, key) pair of a chunk: the quadratic part of attention
//
// fit() takes them from `quire bench step --json`: the least squares of the relative errors under the
// condition that no cost is negative. Exact: of the 2^5 sets of costs that may be 0, the best that keeps the
// rest positive wins. Cells without prompt chunks (`--chunk`) say nothing of the last two costs; a prompt
// token then costs as much as a decode row and a pair as much as a key, which is too much, and the note says
// so.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/group.h"
#include "scheduler/step_plan.h"

namespace quire::simulate {

// What the cost of a step depends on. Keys and pairs are means over the KV groups: a window bounds its share.
struct StepLoad {
  double decode_rows = 0.0;
  double keys = 0.0;
  double prompt_tokens = 0.0;
  double pairs = 0.0;
};
StepLoad load_of(const scheduler::StepPlan& plan, std::span<const kv::GroupRule> rules);

struct DeviceModel {
  double step_s = 4e-3;
  double decode_row_s = 1e-3;
  double key_s = 1e-7;
  double prompt_s = 5e-4;
  double pair_s = 1e-8;

  double seconds(const StepLoad& load) const {
    return step_s + decode_row_s * load.decode_rows + key_s * load.keys + prompt_s * load.prompt_tokens +
           pair_s * load.pairs;
  }
};
std::string to_string(const DeviceModel& model);

struct Measured {
  StepLoad load;
  double seconds = 0.0;
};

struct Fit {
  DeviceModel model;
  std::size_t cells = 0;
  double worst_error = 0.0;  // relative, over the cells
  double mean_error = 0.0;
  std::string note;  // what the cells could not say; empty when nothing
};

// REQUIRES at least one cell, every one with seconds > 0.
Fit fit(std::span<const Measured> cells);
// The "steps" of a `bench step --json` object: batch decode rows of `context` keys each, and with "chunk" a
// chunk of so many prompt tokens behind `context` others.
Result<Fit> fit_bench_step(const std::string& json, const std::string& name);

}  // namespace quire::simulate
