// Test data of the cpu row: sequences whose tokens depend on (identity, key) only, laid out as a spec says,
// an inline stream whose team deals work in any order, and a double precision oracle that reads the cache
// as stored. Poison everywhere: unused slots, table entries past the length, outputs, workspace.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/backends/cpu/backend.h"
#include "attention/backends/cpu/plan.h"
#include "platform/cpu/stream.h"
#include "tensor/kv_format.h"

namespace quire::attention::cpu {

// Runs tasks at once; the team visits indices with a stride, and thread numbers change from index to index.
class InlineTeam : public platform::cpu::Team {
 public:
  InlineTeam(int threads, bool backwards) : threads_(threads), backwards_(backwards) {}
  int threads() const override { return threads_; }
  void run(std::int64_t count, Body body, void* context) override {
    for (std::int64_t i = 0; i < count; ++i)
      body(context, backwards_ ? count - 1 - i : i, static_cast<int>((i * 7 + 3) % threads_));
  }

 private:
  int threads_;
  bool backwards_;
};

class InlineStream : public platform::cpu::CpuStream {
 public:
  InlineStream(int threads, bool backwards) : team_(threads, backwards) {}
  void copy(void*, const void*, std::int64_t) override {}
  void fill(void*, std::uint8_t, std::int64_t) override {}
  void record(platform::Event&) override {}
  void wait(platform::Event&) override {}
  void synchronize() override {}
  void begin_capture() override {}
  std::unique_ptr<platform::Graph> end_capture() override { return nullptr; }
  void launch(platform::Graph&) override {}
  std::int64_t busy_ns() const override { return 0; }
  int threads() const override { return team_.threads(); }

 protected:
  void push(const platform::cpu::Task& task) override { task.run(task.closure, team_); }

 private:
  InlineTeam team_;
};

struct SequenceSpec {
  std::uint64_t identity = 1;
  std::int32_t q_len = 1;
  std::int32_t kv_len = 1;
  std::int32_t part_begin = 0;
  std::int32_t part_end = 1 << 30;
};

struct Spec {
  Problem problem;
  std::vector<SequenceSpec> sequences;
  std::int32_t mask_width = 0;
  float scale = 0.0f;  // 0: 1 / sqrt(qk_dim)
  float softcap = 0.0f;
  bool sink = false;
  bool parts = false;
  std::int32_t tree_rows = 0;  // > 0: that many last rows of each sequence form a tree
  std::int32_t lead_rows = 0;  // q rows before the first sequence, and after the last
  float q_size = 1.0f;
  platform::cpu::Isa isa = platform::cpu::Isa::portable;
  int threads = 2;
  bool backwards = false;
};

struct Outcome {
  std::vector<float> out;       // [total_q, q_heads, v_dim]
  std::vector<float> lse;       // [total_q, q_heads]
  std::int64_t plan_bytes = 0;  // what workspace_bytes promised
  std::int64_t used_bytes = 0;  // what the layout took
  bool guard_intact = true;
};

inline float noise(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t x =
      a * 0x9e3779b97f4a7c15ull ^ b * 0xbf58476d1ce4e5b9ull ^ c * 0x94d049bb133111ebull ^ d << 17;
  for (int i = 0; i < 3; ++i) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
  }
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-53 * 2.0 - 1.0) * 1.7f;
}

inline void store_element(DType type, char* at, float x) {
  if (type == DType::f32) std::memcpy(at, &x, 4);
  if (type == DType::fp8_e4m3) *reinterpret_cast<std::uint8_t*>(at) = f32_to_fp8_e4m3(x);
  const std::uint16_t half = type == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x);
  if (type == DType::bf16 || type == DType::f16) std::memcpy(at, &half, 2);
}

inline float load_element(DType type, const char* at) {
  float x = 0.0f;
  std::uint16_t half = 0;
  if (type == DType::fp8_e4m3) return fp8_e4m3_to_f32(*reinterpret_cast<const std::uint8_t*>(at));
  std::memcpy(type == DType::f32 ? static_cast<void*>(&x) : &half, at, type == DType::f32 ? 4 : 2);
  return type == DType::f32 ? x : type == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
}

class World {
 public:
  explicit World(const Spec& spec) : s_(spec), p_(spec.problem) {
    lay_out_cache();
    make_rows();
    for (std::size_t i = 0; i < s_.sequences.size(); ++i) fill_sequence(static_cast<int>(i));
  }

  Outcome run() { return run(s_.isa); }
  Outcome run(platform::cpu::Isa isa);
  // Exact output of one row and head; returns lse.
  double oracle(std::int32_t row, std::int32_t head, std::vector<double>& out) const;
  std::int32_t rows() const { return shape_.total_q; }
  std::int32_t row_of(int sequence, std::int32_t row) const { return q_offsets_[sequence] + row; }

 private:
  bool latent() const { return (p_.features & kLatent) != 0; }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(dtype_bytes(p_.kv.k_type)); }
  void lay_out_cache();
  void make_rows();
  void fill_sequence(int i);
  char* address(bool value, int sequence, std::int32_t key, std::int32_t head) const;
  float* scale_address(bool value, int sequence, std::int32_t key, std::int32_t head) const;
  double scale_of(bool value, int sequence, std::int32_t key, std::int32_t head) const;
  bool visible(int sequence, std::int32_t row, std::int32_t key) const;

  Spec s_;
  Problem p_;
  std::vector<std::uint64_t> arena_;
  KvView kv_;
  std::vector<float> k_scales_, v_scales_, sink_, q_;
  std::vector<std::int32_t> q_offsets_, kv_lens_, row_begin_, row_end_, tree_base_, tree_depth_, part_begin_,
      part_end_;
  std::vector<std::uint32_t> table_;
  std::vector<std::int64_t> kv_offsets_;
  std::vector<std::uint64_t> tree_bits_;
  StepShape shape_;
};

inline void World::lay_out_cache() {
  const bool paged = p_.source == KvSource::paged;
  const std::int32_t page = paged ? p_.page_size : 1;
  std::int64_t pages = 1;
  for (const SequenceSpec& q : s_.sequences) {
    shape_.table_stride = std::max<std::int64_t>(shape_.table_stride, q.kv_len / page + 3);
    pages += q.kv_len / page + 1;
  }
  const std::vector<KvLayerShape> layers(2, {p_.kv_heads, p_.qk_dim, p_.v_dim, latent(), -1});
  const KvLayout layout = make_kv_layout(layers, p_.kv, page, p_.order, pages).value();
  const std::int64_t bytes = pages * layout.page_stride() * 2 + 4096;
  arena_.assign(static_cast<std::size_t>(bytes / 8), ~0ull);  // NaN in every type
  for (int h = 0; h < p_.kv_heads; ++h) {
    k_scales_.push_back(0.011f + 0.002f * static_cast<float>(h));
    v_scales_.push_back(0.009f + 0.003f * static_cast<float>(h));
  }
  char* base = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(arena_.data()) + 63) / 64 * 64);
  kv_ = layout.view(base, 1, k_scales_.data(), v_scales_.data());
  if (!paged) {
    // A dense source is [key][head][dim]: every page of one token is one row of it.
    kv_.k_stride.token = kv_.v_stride.token = layout.page_stride();
    kv_.scale_stride.token = kv_.scale_stride.page;
  }
  table_.assign(s_.sequences.size() * static_cast<std::size_t>(shape_.table_stride), 0xffffffffu);
  std::uint32_t next = static_cast<std::uint32_t>(pages) - 1;  // pages in falling order, interleaved
  for (std::int64_t at = 0; at < shape_.table_stride; ++at)
    for (std::size_t i = 0; i < s_.sequences.size(); ++i)
      if (paged && at * page < s_.sequences[i].kv_len)
        table_[i * static_cast<std::size_t>(shape_.table_stride) + static_cast<std::size_t>(at)] = next--;
  std::int64_t offset = 1;
  for (const SequenceSpec& q : s_.sequences) {
    kv_offsets_.push_back(offset);
    offset += q.kv_len;
  }
}

inline void World::make_rows() {
  std::int32_t rows = s_.lead_rows;
  for (const SequenceSpec& q : s_.sequences) {
    q_offsets_.push_back(rows);
    kv_lens_.push_back(q.kv_len);
    part_begin_.push_back(q.part_begin);
    part_end_.push_back(q.part_end);
    tree_base_.push_back(q.kv_len - s_.tree_rows);
    for (std::int32_t r = 0; r < q.q_len; ++r) {
      const std::int32_t p = q.kv_len - q.q_len + r;
      row_begin_.resize(static_cast<std::size_t>(rows + r + 1));
      row_end_.resize(static_cast<std::size_t>(rows + r + 1));
      tree_bits_.resize(static_cast<std::size_t>(rows + r + 1));
      tree_depth_.resize(static_cast<std::size_t>(rows + r + 1));
      row_begin_.back() = p % 3 == 0 ? 0 : p / 2;  // prefix-like and block-like rows, some past their key
      row_end_.back() = p % 4 == 3 ? p / 2 : std::min(q.kv_len, p + 1 + p % 5);
      // Row t of the tree has parent t / 2: its bits are its ancestors' and its own.
      for (std::int32_t t = p - (q.kv_len - s_.tree_rows); t >= 0; t = t == 0 ? -1 : t / 2) {
        tree_bits_.back() |= 1ull << t;
        if (t != 0) ++tree_depth_.back();
      }
    }
    rows += q.q_len;
  }
  q_offsets_.push_back(rows);
  shape_.batch = static_cast<std::int32_t>(s_.sequences.size());
  shape_.total_q = rows + s_.lead_rows;
  shape_.q_offsets = q_offsets_.data();
  shape_.kv_lens = kv_lens_.data();
  shape_.block_table = p_.source == KvSource::paged ? table_.data() : nullptr;
  shape_.kv_offsets = p_.source == KvSource::dense ? kv_offsets_.data() : nullptr;
  shape_.mask = p_.mask;
  shape_.mask_width = s_.mask_width;
  row_begin_.resize(static_cast<std::size_t>(shape_.total_q));
  row_end_.resize(static_cast<std::size_t>(shape_.total_q));
  shape_.row_begin = row_begin_.data();
  shape_.row_end = row_end_.data();
  if (s_.tree_rows > 0) {
    shape_.tree_bits = tree_bits_.data();
    shape_.tree_words = 1;
    shape_.tree_base = tree_base_.data();
    shape_.tree_depth = tree_depth_.data();
  }
  if (s_.parts) {
    shape_.part_begin = part_begin_.data();
    shape_.part_end = part_end_.data();
  }
  for (const SequenceSpec& q : s_.sequences) {
    shape_.max_q = std::max(shape_.max_q, q.q_len);
    shape_.max_kv = std::max(shape_.max_kv, q.kv_len);
  }
  if (s_.scale == 0.0f) s_.scale = 1.0f / std::sqrt(static_cast<float>(p_.qk_dim));
  for (std::int32_t h = 0; h < p_.q_heads; ++h)
    sink_.push_back(noise(7, 7, 7, static_cast<std::uint64_t>(h)));
  q_.assign(static_cast<std::size_t>(shape_.total_q) * static_cast<std::size_t>(p_.q_heads * p_.qk_dim), NAN);
}

inline char* World::address(bool value, int sequence, std::int32_t key, std::int32_t head) const {
  const KvStrides& stride = value ? kv_.v_stride : kv_.k_stride;
  char* base = static_cast<char*>(value ? kv_.v : kv_.k) + head * stride.head;
  if (p_.source == KvSource::dense)
    return base + (kv_offsets_[static_cast<std::size_t>(sequence)] + key) * stride.token;
  const std::int64_t page =
      table_[static_cast<std::size_t>(sequence * shape_.table_stride + key / p_.page_size)];
  return base + page * stride.page + key % p_.page_size * stride.token;
}

inline float* World::scale_address(bool value, int sequence, std::int32_t key, std::int32_t head) const {
  const KvStrides& stride = kv_.scale_stride;
  char* base =
      reinterpret_cast<char*>(const_cast<float*>(value ? kv_.v_scale : kv_.k_scale)) + head * stride.head;
  if (p_.source == KvSource::dense)
    return reinterpret_cast<float*>(base +
                                    (kv_offsets_[static_cast<std::size_t>(sequence)] + key) * stride.token);
  const std::int64_t page =
      table_[static_cast<std::size_t>(sequence * shape_.table_stride + key / p_.page_size)];
  return reinterpret_cast<float*>(base + page * stride.page + key % p_.page_size * stride.token);
}

inline double World::scale_of(bool value, int sequence, std::int32_t key, std::int32_t head) const {
  const std::vector<float>& scales = value ? v_scales_ : k_scales_;
  switch (p_.kv.scale) {
    case KvScaleKind::tensor:
      return scales[0];
    case KvScaleKind::layer_head:
      return scales[static_cast<std::size_t>(head)];
    case KvScaleKind::token_head:
      return *scale_address(value, sequence, key, head);
    default:
      return 1.0;
  }
}

inline void World::fill_sequence(int i) {
  const SequenceSpec& q = s_.sequences[static_cast<std::size_t>(i)];
  const std::uint64_t id = q.identity;
  for (std::int32_t key = 0; key < q.kv_len; ++key)
    for (std::int32_t h = 0; h < p_.kv_heads; ++h)
      for (int value = 0; value <= (latent() ? 0 : 1); ++value) {
        if (p_.kv.scale == KvScaleKind::token_head)
          for (int both = value; both <= (latent() ? 1 : value); ++both)
            *scale_address(both != 0, i, key, h) =
                0.01f + 0.005f * std::fabs(noise(id, 3, static_cast<std::uint64_t>(key), 1));
        const double scale = scale_of(value != 0, i, key, h);
        char* at = address(value != 0, i, key, h);
        const std::int32_t dim = value != 0 ? p_.v_dim : p_.qk_dim;
        for (std::int32_t d = 0; d < dim; ++d)
          store_element(p_.kv.k_type, at + d * element_bytes(),
                        static_cast<float>(
                            noise(id * 2 + static_cast<std::uint64_t>(value), static_cast<std::uint64_t>(key),
                                  static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(d)) /
                            scale));
      }
  for (std::int32_t r = 0; r < q.q_len; ++r)
    for (std::int32_t e = 0; e < p_.q_heads * p_.qk_dim; ++e)
      q_[static_cast<std::size_t>((q_offsets_[static_cast<std::size_t>(i)] + r) * p_.q_heads * p_.qk_dim +
                                  e)] =
          s_.q_size *
          noise(id, 99, static_cast<std::uint64_t>(q.kv_len - q.q_len + r), static_cast<std::uint64_t>(e));
}

inline Outcome World::run(platform::cpu::Isa isa) {
  InlineStream stream(s_.threads, s_.backwards);
  const auto attention = make_attention(p_, isa);
  Outcome o;
  const Limits limits{sizeof(Limits), shape_.batch, shape_.total_q, shape_.max_q, shape_.max_kv, s_.threads};
  o.plan_bytes = attention->workspace_bytes(limits);
  std::vector<std::uint64_t> buffer(static_cast<std::size_t>(o.plan_bytes / 8 + 64), ~0ull);
  char* base = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(buffer.data()) + 63) / 64 * 64);
  const PlanBuffer plan{base, o.plan_bytes};
  o.used_bytes = make_layout(make_geometry(p_), shape_, plan, s_.threads).bytes;
  o.out.assign(static_cast<std::size_t>(shape_.total_q) * static_cast<std::size_t>(p_.q_heads * p_.v_dim),
               NAN);
  o.lse.assign(static_cast<std::size_t>(shape_.total_q) * static_cast<std::size_t>(p_.q_heads), NAN);
  Args args;
  args.q = q_.data();
  args.q_row_stride = p_.q_heads * p_.qk_dim;
  args.q_head_stride = p_.qk_dim;
  args.out = o.out.data();
  args.out_row_stride = p_.q_heads * p_.v_dim;
  args.out_head_stride = p_.v_dim;
  args.lse = o.lse.data();
  args.kv = kv_;
  args.scale = s_.scale;
  args.softcap = s_.softcap;
  args.sink = s_.sink ? sink_.data() : nullptr;
  attention->plan(shape_, plan, stream);
  attention->run(shape_, args, plan, stream);
  std::fill(o.out.begin(), o.out.end(), NAN);
  attention->run(shape_, args, plan, stream);  // as the next layer does: a plan serves many runs
  for (const char* at = base + o.plan_bytes;
       at < reinterpret_cast<const char*>(buffer.data() + buffer.size()); ++at)
    o.guard_intact = o.guard_intact && *at == static_cast<char>(0xff);
  return o;
}

inline bool World::visible(int sequence, std::int32_t row, std::int32_t key) const {
  const SequenceSpec& q = s_.sequences[static_cast<std::size_t>(sequence)];
  const std::int32_t at = q_offsets_[static_cast<std::size_t>(sequence)] + row;
  std::int32_t p = q.kv_len - q.q_len + row;
  if (key < 0 || key >= q.kv_len) return false;
  if (s_.parts && (key < q.part_begin || key >= q.part_end)) return false;
  if (s_.tree_rows > 0) {
    const std::int32_t base = q.kv_len - s_.tree_rows;
    if (key >= base) return tree_bits_[static_cast<std::size_t>(at)] >> (key - base) & 1;
    p = base + tree_depth_[static_cast<std::size_t>(at)];
  }
  switch (p_.mask) {
    case MaskKind::causal:
      return key <= p;
    case MaskKind::window:
      return key <= p && key > p - s_.mask_width;
    case MaskKind::chunked:
      return key <= p && key / s_.mask_width == p / s_.mask_width;
    case MaskKind::full:
      return true;
    case MaskKind::rows:
      return key >= row_begin_[static_cast<std::size_t>(at)] && key < row_end_[static_cast<std::size_t>(at)];
  }
  return false;
}

inline double World::oracle(std::int32_t row, std::int32_t head, std::vector<double>& out) const {
  out.assign(static_cast<std::size_t>(p_.v_dim), 0.0);
  const int count = static_cast<int>(s_.sequences.size());
  int sequence = 0;
  while (sequence < count && row >= q_offsets_[static_cast<std::size_t>(sequence) + 1]) ++sequence;
  const double none = -std::numeric_limits<double>::infinity();
  if (row < q_offsets_[0] || sequence == count) return none;
  const std::int32_t inner = row - q_offsets_[static_cast<std::size_t>(sequence)];
  const std::int32_t kv_head = head / (p_.q_heads / p_.kv_heads);
  const float* q = &q_[static_cast<std::size_t>((row * p_.q_heads + head) * p_.qk_dim)];
  std::vector<std::pair<double, std::int32_t>> seen;
  double top = none;
  for (std::int32_t key = 0; key < s_.sequences[static_cast<std::size_t>(sequence)].kv_len; ++key) {
    if (!visible(sequence, inner, key)) continue;
    const char* k = address(false, sequence, key, kv_head);
    double dot = 0.0;
    for (std::int32_t d = 0; d < p_.qk_dim; ++d)
      dot += static_cast<double>(q[d]) * load_element(p_.kv.k_type, k + d * element_bytes());
    double score = dot * s_.scale * scale_of(false, sequence, key, kv_head);
    if (s_.softcap > 0.0f) score = s_.softcap * std::tanh(score / s_.softcap);
    seen.emplace_back(score, key);
    top = std::max(top, score);
  }
  if (seen.empty()) return none;
  double sum = 0.0;
  for (const auto& [score, key] : seen) {
    const double w = std::exp(score - top);
    const double scale = w * scale_of(true, sequence, key, kv_head);
    const char* v = address(true, sequence, key, kv_head);
    for (std::int32_t d = 0; d < p_.v_dim; ++d)
      out[static_cast<std::size_t>(d)] += scale * load_element(p_.kv.k_type, v + d * element_bytes());
    sum += w;
  }
  const double whole = sum + (s_.sink ? std::exp(sink_[static_cast<std::size_t>(head)] - top) : 0.0);
  for (double& x : out) x /= whole;
  return top + std::log(sum);
}

}  // namespace quire::attention::cpu
