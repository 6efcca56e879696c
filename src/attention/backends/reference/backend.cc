#include "attention/backends/reference/backend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "attention/backends/reference/decode.h"
#include "base/check.h"
#include "platform/cpu/stream.h"

namespace quire::attention {
namespace {

using reference::load;
using reference::store;

// The keys of one row: an interval, and above tree_base the row's bits decide instead.
struct Visible {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t part_begin = 0;
  std::int64_t part_end = 0;  // within kv_len
  std::int64_t tree_base = 0;
  const std::uint64_t* tree_bits = nullptr;
  std::int64_t tree_words = 0;

  bool sees(std::int64_t key) const {
    if (key < part_begin || key >= part_end) return false;
    if (tree_bits == nullptr || key < tree_base) return key >= begin && key < end;
    const std::int64_t node = key - tree_base;
    return node < tree_words * 64 && ((tree_bits[node / 64] >> (node % 64)) & 1) != 0;
  }
};

struct Job {
  Problem problem;
  StepShape shape;
  Args args;
  double* scratch = nullptr;  // per thread, scratch_doubles() of them
  std::int64_t scratch_stride = 0;
};

// What one row and head needs: its scores, sums, and one q, k and v row as doubles.
struct Scratch {
  double* scores;  // [max_kv]
  double* sums;    // [v_dim]
  double* q;       // [qk_dim]
  double* k;       // [qk_dim]
  double* v;       // [v_dim]
};

std::int64_t scratch_doubles(const Problem& problem, std::int64_t max_kv) {
  return max_kv + 2 * std::int64_t{problem.qk_dim} + 2 * std::int64_t{problem.v_dim};
}

Scratch scratch_of(const Job& job, int thread) {
  Scratch s;
  s.scores = job.scratch + thread * job.scratch_stride;
  s.sums = s.scores + job.shape.max_kv;
  s.q = s.sums + job.problem.v_dim;
  s.k = s.q + job.problem.qk_dim;
  s.v = s.k + job.problem.qk_dim;
  return s;
}

// The sequence that row belongs to, or -1.
std::int32_t sequence_of(const StepShape& shape, std::int64_t row) {
  for (std::int32_t i = 0; i < shape.batch; ++i)
    if (row >= shape.q_offsets[i] && row < shape.q_offsets[i + 1]) return i;
  return -1;
}

Visible visible_keys(const StepShape& shape, std::int32_t sequence, std::int64_t row) {
  const std::int64_t kv_len = shape.kv_lens[sequence];
  const std::int64_t q_begin = shape.q_offsets[sequence];
  const std::int64_t q_len = shape.q_offsets[sequence + 1] - q_begin;
  std::int64_t p = kv_len - q_len + (row - q_begin);
  Visible v;
  if (shape.tree_bits != nullptr) {
    v.tree_base = shape.tree_base[sequence];
    v.tree_bits = shape.tree_bits + row * shape.tree_words;
    v.tree_words = shape.tree_words;
    p = v.tree_base + shape.tree_depth[row];
  }
  const std::int64_t width = shape.mask_width;
  v.end = p + 1;
  switch (shape.mask) {
    case MaskKind::causal:
      break;
    case MaskKind::window:
      v.begin = std::max<std::int64_t>(0, p - width + 1);
      break;
    case MaskKind::chunked:
      v.begin = p < 0 ? 0 : p / width * width;
      break;
    case MaskKind::full:
      v.end = kv_len;
      break;
    case MaskKind::rows:
      v.begin = shape.row_begin[row];
      v.end = shape.row_end[row];
      break;
  }
  v.part_begin = shape.part_begin ? std::max<std::int64_t>(0, shape.part_begin[sequence]) : 0;
  v.part_end = shape.part_end ? std::min<std::int64_t>(kv_len, shape.part_end[sequence]) : kv_len;
  return v;
}

// Where K, V and the scales of one key and KV head lie.
struct Entry {
  const char* k = nullptr;
  const char* v = nullptr;
  double k_scale = 1;
  double v_scale = 1;
};

std::int64_t offset_of(const KvStrides& stride, std::int64_t page, std::int64_t head, std::int64_t token) {
  return page * stride.page + head * stride.head + token * stride.token;
}

double scale_at(const float* base, std::int64_t offset_bytes) {
  return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(base) + offset_bytes);
}

Entry entry_of(const Job& job, std::int32_t sequence, std::int64_t key, std::int64_t head) {
  const KvView& kv = job.args.kv;
  std::int64_t page = 0;
  std::int64_t token = 0;
  if (job.problem.source == KvSource::dense) {
    token = job.shape.kv_offsets[sequence] + key;
  } else {
    page = job.shape.block_table[sequence * job.shape.table_stride + key / kv.page_size];
    token = key % kv.page_size;
  }
  Entry entry;
  entry.k = static_cast<const char*>(kv.k) + offset_of(kv.k_stride, page, head, token);
  entry.v = static_cast<const char*>(kv.v) + offset_of(kv.v_stride, page, head, token);
  const std::int64_t scale_offset = offset_of(kv.scale_stride, page, head, token);
  switch (kv.format.scale) {
    case KvScaleKind::none:
      break;
    case KvScaleKind::tensor:
      entry.k_scale = kv.k_scale[0];
      entry.v_scale = kv.v_scale[0];
      break;
    case KvScaleKind::layer_head:
      entry.k_scale = kv.k_scale[head];
      entry.v_scale = kv.v_scale[head];
      break;
    case KvScaleKind::token_head:
      entry.k_scale = scale_at(kv.k_scale, scale_offset);
      entry.v_scale = scale_at(kv.v_scale, scale_offset);
      break;
    case KvScaleKind::block:
      QUIRE_CHECK(false, "block scales are in no box of {}", "reference");
  }
  return entry;
}

void load_query(const Job& job, std::int64_t row, std::int64_t head, double* q) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(job.problem.q_type));
  const std::int64_t element = row * job.args.q_row_stride + head * job.args.q_head_stride;
  load(job.problem.q_type, static_cast<const char*>(job.args.q) + element * bytes, job.problem.qk_dim, bytes,
       q);
}

double score_of(const Job& job, const Entry& entry, const Scratch& s) {
  const KvView& kv = job.args.kv;
  load(kv.format.k_type, entry.k, job.problem.qk_dim, kv.k_stride.dim, s.k);
  double dot = 0;
  for (std::int64_t d = 0; d < job.problem.qk_dim; ++d) dot += s.q[d] * s.k[d];
  double score = static_cast<double>(job.args.scale) * job.args.q_descale * entry.k_scale * dot;
  if (job.args.softcap > 0) score = job.args.softcap * std::tanh(score / job.args.softcap);
  return score;
}

void add_value(const Job& job, const Entry& entry, double weight, const Scratch& s) {
  const KvView& kv = job.args.kv;
  load(kv.format.v_type, entry.v, job.problem.v_dim, kv.v_stride.dim, s.v);
  for (std::int64_t d = 0; d < job.problem.v_dim; ++d) s.sums[d] += weight * entry.v_scale * s.v[d];
}

void write_row(const Job& job, std::int64_t row, std::int64_t head, const double* sums, double denominator,
               double lse) {
  const std::int64_t element = row * job.args.out_row_stride + head * job.args.out_head_stride;
  for (std::int64_t d = 0; d < job.problem.v_dim; ++d)
    store(job.problem.q_type, job.args.out, element + d, sums != nullptr ? sums[d] / denominator : 0.0);
  if (job.args.lse != nullptr) job.args.lse[row * job.problem.q_heads + head] = static_cast<float>(lse);
}

// Keys in order, by the row's list when there is a sparse index: call(key) for each visible one.
template <class F>
void for_each_key(const Job& job, const Visible& visible, std::int64_t row, std::int64_t head, F&& call) {
  const SparseIndex& sparse = job.args.sparse;
  if (sparse.index == nullptr) {
    for (std::int64_t key = visible.part_begin; key < visible.part_end; ++key)
      if (visible.sees(key)) call(key);
    return;
  }
  const std::int64_t index_head = head * sparse.index_heads / job.problem.q_heads;
  const std::int32_t* list = sparse.index + (row * sparse.index_heads + index_head) * sparse.k;
  for (std::int32_t i = 0; i < sparse.k; ++i)
    if (list[i] >= 0 && visible.sees(list[i])) call(list[i]);
}

void attend(const Job& job, std::int64_t row, std::int64_t head, const Scratch& s) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  const std::int32_t sequence = sequence_of(job.shape, row);
  if (sequence < 0) return write_row(job, row, head, nullptr, 1, kMinusInfinity);
  QUIRE_CHECK(job.shape.kv_lens[sequence] <= job.shape.max_kv, "kv_len={} max_kv={}",
              job.shape.kv_lens[sequence], job.shape.max_kv);
  const Visible visible = visible_keys(job.shape, sequence, row);
  const std::int64_t kv_head = head / (job.problem.q_heads / job.problem.kv_heads);
  load_query(job, row, head, s.q);

  std::int64_t count = 0;
  double largest = kMinusInfinity;
  for_each_key(job, visible, row, head, [&](std::int64_t key) {
    const double score = score_of(job, entry_of(job, sequence, key, kv_head), s);
    largest = std::max(largest, score);
    s.scores[count++] = score;
  });
  if (count == 0) return write_row(job, row, head, nullptr, 1, kMinusInfinity);

  std::fill(s.sums, s.sums + job.problem.v_dim, 0.0);
  double total = 0;
  count = 0;
  for_each_key(job, visible, row, head, [&](std::int64_t key) {
    const double weight = std::exp(s.scores[count++] - largest);
    total += weight;
    add_value(job, entry_of(job, sequence, key, kv_head), weight, s);
  });
  // A sink far above the keys overflows to infinity here, which gives the right result: 0.
  const double sink =
      job.args.sink != nullptr ? std::exp(static_cast<double>(job.args.sink[head]) - largest) : 0.0;
  write_row(job, row, head, s.sums, total + sink, largest + std::log(total));
}

class ReferenceAttention final : public Attention {
 public:
  explicit ReferenceAttention(const Problem& problem) : problem_(problem) {}

  std::int64_t workspace_bytes(const Limits& limits) const override {
    return static_cast<std::int64_t>(sizeof(double)) * limits.threads *
           scratch_doubles(problem_, limits.max_kv);
  }

  void plan(const StepShape&, PlanBuffer, platform::Stream&) override {}

  void run(const StepShape& shape, const Args& args, PlanBuffer buffer, platform::Stream& stream) override {
    auto& cpu = platform::cpu::as_cpu(stream);
    Job job{problem_, shape, args, static_cast<double*>(buffer.data),
            scratch_doubles(problem_, shape.max_kv)};
    const std::int64_t needed =
        cpu.threads() * job.scratch_stride * static_cast<std::int64_t>(sizeof(double));
    QUIRE_CHECK(buffer.bytes >= needed, "plan buffer of {} bytes, {} needed", buffer.bytes, needed);
    cpu.enqueue([job](platform::cpu::Team& team) {
      team.for_each(job.shape.total_q * static_cast<std::int64_t>(job.problem.q_heads),
                    [&](std::int64_t index, int thread) {
                      attend(job, index / job.problem.q_heads, index % job.problem.q_heads,
                             scratch_of(job, thread));
                    });
    });
  }

 private:
  Problem problem_;
};

constexpr std::uint32_t kFloats = bit(DType::f32) | bit(DType::bf16) | bit(DType::f16);

constexpr Box kBoxes[] = {{
    .platforms = bit(platform::Kind::cpu),
    .phases = bit(Phase::decode) | bit(Phase::verify) | bit(Phase::extend),
    .q_types = kFloats,
    .kv = {.types = kFloats | bit(DType::fp8_e4m3),
           .scales = bit(KvScaleKind::none) | bit(KvScaleKind::tensor) | bit(KvScaleKind::layer_head) |
                     bit(KvScaleKind::token_head),
           .mixed = true},
    .page = {.kind = PageRule::Kind::any, .min = 1, .max = 256},
    .orders = bit(PageOrder::page_first) | bit(PageOrder::layer_first),
    .sources = bit(KvSource::paged) | bit(KvSource::dense),
    .masks = bit(MaskKind::causal) | bit(MaskKind::window) | bit(MaskKind::chunked) | bit(MaskKind::full) |
             bit(MaskKind::rows),
    .features = kSoftcap | kSink | kLse | kTree | kPart | kSparse | kLatent,
}};

std::unique_ptr<Attention> make(const Problem& problem, platform::Device&) {
  return std::make_unique<ReferenceAttention>(problem);
}

}  // namespace

Backend reference_backend() {
  return {.name = "reference",
          .description = "the contract in double precision: the oracle of the others, for any shape",
          .caps = {.boxes = kBoxes,
                   .capture = Capture::any,
                   .host_lengths = HostLengths::no,
                   .determinism = Determinism::schedule_invariant,
                   .longest_query = kMaxTree},
          .make = make};
}

}  // namespace quire::attention
