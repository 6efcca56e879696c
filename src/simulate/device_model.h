// DeviceModel: how long a step takes, from what its plan holds.
//
//   rows     a curve: what a step of so many rows takes, decode rows and prompt tokens alike: its launches,
//            the weights read once, its products. Linear between the points that were measured.
//   logit_s  per row whose logits are wanted: every decode row, and the last token of a prompt
//   key_s    per key that a decode row reads
//   pair_s   per (query, key) pair of a prompt chunk: the quadratic part of attention
//
// A curve, for the products are no straight line: kernels work on tiles of rows, and the weights' share falls
// with the rows.
//
// fit() takes them from `quire bench step --json`: every number of rows that has a cell is a point of the
// curve; the three slopes are the least squares of the relative errors between cells of equally many rows,
// none of them negative. So the slope of logits needs a batch and a chunk of one size, that of keys a batch
// at two contexts, that of pairs a chunk behind two contexts. What the cells do not say, the note does.
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
  double logits = 0.0;
  double rows() const { return decode_rows + prompt_tokens; }
};
StepLoad load_of(const scheduler::StepPlan& plan, std::span<const kv::GroupRule> rules);

struct DeviceModel {
  struct Point {
    double rows = 0.0;
    double seconds = 0.0;
  };
  // By rows, at least one. Outside, the first or the last line goes on; a single point stands for less, and
  // more takes longer in proportion.
  std::vector<Point> rows = {{1, 4.5e-3}, {2, 5e-3}};
  double logit_s = 5e-4;
  double key_s = 1e-7;
  double pair_s = 1e-8;

  double rows_seconds(double count) const;
  double seconds(const StepLoad& load) const {
    return rows_seconds(load.rows()) + logit_s * load.logits + key_s * load.keys + pair_s * load.pairs;
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
