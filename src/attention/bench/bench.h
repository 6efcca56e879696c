// bench: what this machine can do at best (ceilings), and how near a backend comes to it. The commands
// `bench device` and `bench attention` print what comes back here (cli: one JSON cell per AttentionCell).
//
// Method. A cell is checked against the reference row first (same kind of problem, fewer keys), then
// timed: its cache is spread over several layers so that one pass reads several times the last-level
// cache, pages lie shuffled, values are random. Ceilings and cells take turns in rounds; a fraction is
// the median of the rounds' own ratios, so that a change of the machine's speed touches both sides.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/caps.h"
#include "base/result.h"
#include "platform/platform.h"

namespace quire::attention::bench {

struct Ceilings {
  double read_bytes_s = 0;
  double copy_bytes_s = 0;                                    // bytes read plus bytes written
  std::vector<std::pair<std::string, double>> matmul_flop_s;  // by element type
  double launch_us = 0;                                       // one task on an idle stream, end to end
  double graph_node_us = 0;                                   // one empty node of a replayed graph
  int threads = 0;
  std::int64_t cache_bytes = 0;  // last-level cache, as the system reports it
};

struct Shape {
  std::int32_t q_heads = 32;
  std::int32_t kv_heads = 8;
  std::int32_t qk_dim = 128;
  std::int32_t v_dim = 128;
  std::int32_t batch = 1;
  std::int32_t context = 8192;  // keys of a sequence, its new rows included
  std::int32_t q_len = 1;
  bool latent = false;
  std::int32_t shared = 0;  // first keys that all sequences have in common, in common pages
  bool hinted = false;      // and the row is told so (prefix groups)
};

struct CellSpec {
  std::string backend;  // a row of the table
  Shape shape;
  std::int32_t page_size = 64;
  KvFormat kv;
  MaskKind mask = MaskKind::causal;
  std::int32_t mask_width = 0;
};

struct AttentionCell {
  CellSpec spec;
  std::string call;  // "decode", "verify", "extend"
  std::string kv_dtype;
  double us = 0;  // one layer: median, least and most over the rounds; 0: not timed, nor is what follows
  double us_min = 0;
  double us_max = 0;
  double bytes_s = 0;  // cache bytes that must be read, per second
  double flop_s = 0;
  double fraction = 0;     // of the nearer ceiling: reading or multiplying
  double check_error = 0;  // relative Frobenius error against the reference row
  double check_gate = 0;
  std::string refused;  // why the row cannot serve the cell; nothing is timed then
};

struct Options {
  int rounds = 7;
  double round_seconds = 0.05;  // least time of one measurement
  // What the buffers that take turns hold together; 0: 8 times the last-level cache (4 times is the
  // least that shows memory; a guest may own more of the host's cache than it is told).
  std::int64_t rotation_bytes = 0;
};

struct AttentionReport {
  Ceilings ceilings;
  std::vector<AttentionCell> cells;
};

Result<Ceilings> bench_device(platform::Device& device, const Options& options);

// Unknown row names are bad_input, and so are cells of which no row can serve one: it says why. A failed
// check leaves the cell's times at 0 with its error over its gate.
Result<AttentionReport> bench_attention(platform::Device& device, std::span<const Backend> table,
                                        const std::vector<CellSpec>& specs, const Options& options);

}  // namespace quire::attention::bench
