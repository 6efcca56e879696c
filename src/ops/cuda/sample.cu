// sample: a cluster of eight blocks per row, each with an eighth of the vocabulary in its shared memory, so
// that the logits are read once and the filters look at them as often as they like.
//
// The kept tokens are a prefix of the order (logit down, id up). Its border is found by counting, never by
// sorting: the distance from the largest logit becomes a 32-bit key, and three rounds of histograms over all
// blocks find the key at which a count (top-k) or a weight (top-p) is reached; equal keys are cut by id.
// Weights are integers (the largest is 2^31), so sums do not depend on their order and equal seeds give equal
// tokens; the draw is the CPU's: the first token in id order at which the sum passes u times the total.
#include <cooperative_groups.h>

#include <cstdint>
#include <limits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/philox.h"

namespace quire::ops::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;     // of a cluster
constexpr int kThreads = 512;  // two blocks to a multiprocessor hide each other's waits
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kBinsPerBlock = kBins / kBlocks;
constexpr int kMaxId = std::numeric_limits<int>::max();

struct Cell {  // what one block tells the others
  std::uint64_t sum;
  float value;
  std::int32_t id;
};

// The part of a block's shared memory whose size is fixed; the slice's logits and token counts lie behind it.
struct Shared {
  std::uint32_t low[kBins], high[kBins];  // of a histogram: sums of the low 16 bits, and of the rest
  Cell cell[2];
  std::uint64_t sums[kWarps];
  float values[kWarps];
  std::int32_t ids[kWarps];
  std::uint64_t found_before;
  std::int32_t found;
};

struct SampleArgs {
  Sample s;
  Rows logits;
  std::int32_t vocab;
  std::int32_t slice;  // of a block
};

// What is kept: keys below the border's, and at it ids up to the border's.
struct Border {
  std::uint32_t key = 0xffffffffu;
  std::int32_t id = kMaxId;
};

class Sampler {
 public:
  __device__ Sampler(const SampleArgs& a, Shared& shared, float* x, std::uint32_t* counts)
      : a_(a),
        cluster_(cg::this_cluster()),
        shared_(shared),
        x_(x),
        counts_(counts),
        rank_(static_cast<int>(cluster_.block_rank())),
        first_(rank_ * a.slice),
        size_(max(0, min(a.slice, a.vocab - first_))),
        me_(static_cast<int>(threadIdx.x)) {}

  __device__ std::int32_t run(const SamplingParams& p, const LogitBias* bias, const std::int32_t* tokens,
                              std::int32_t token_count, std::int32_t prompt_length) {
    if (!load()) return -1;
    apply_penalties(p, tokens, token_count, prompt_length);
    apply_bias(p, bias);
    if (a_.s.mask_row != nullptr && !apply_mask()) return -1;
    const Cell best = argmax();
    if (!(p.temperature > 0.0f)) return best.id;
    largest_ = best.value / p.temperature;
    if (!isfinite(largest_)) return best.id;
    for (int i = me_; i < size_; i += kThreads) {
      const float x = x_[i] / p.temperature;
      x_[i] = isnan(x) ? -INFINITY : x;
    }
    __syncthreads();
    Border border;
    if (p.top_k > 0 && p.top_k < a_.vocab)
      border = cut(border, static_cast<std::uint64_t>(p.top_k), [](float) { return 1u; });
    const auto weight_of = [this](float x) { return weight(x); };
    if (p.top_p < 1.0f) {
      const std::uint64_t total = total_of([&](int i) { return kept(border, i) ? weight(x_[i]) : 0u; });
      const double wanted = ceil(static_cast<double>(p.top_p) * static_cast<double>(total));
      const std::uint64_t target = wanted > 1.0 ? static_cast<std::uint64_t>(wanted) : 1u;
      border = cut(border, min(target, total), weight_of);
    }
    const auto share = [&](int i) {
      const float relative = expf(x_[i] - largest_);
      return kept(border, i) && relative >= p.min_p ? weight(x_[i]) : 0u;
    };
    const std::uint64_t total = total_of(share);
    const auto sampled = static_cast<std::uint64_t>(max(0, token_count - prompt_length));
    const double u = uniform_draw(p.seed, p.sequence_index, sampled);
    return find(share, static_cast<std::uint64_t>(u * static_cast<double>(total)));
  }

 private:
  // ---- the cluster's common results: every block gets the same ----

  // The cells of all blocks, combined in the order of blocks.
  template <class F>
  __device__ Cell exchange(Cell mine, F&& combine) {
    turn_ ^= 1;
    if (me_ == 0) shared_.cell[turn_] = mine;
    cluster_.sync();
    if (me_ == 0) {
      Cell all = *cluster_.map_shared_rank(&shared_.cell[turn_], 0);
      for (int r = 1; r < kBlocks; ++r)
        all = combine(all, *cluster_.map_shared_rank(&shared_.cell[turn_], r));
      result_in(all);
    }
    __syncthreads();
    const Cell all{shared_.sums[0], shared_.values[0], shared_.ids[0]};
    __syncthreads();
    return all;
  }
  __device__ void result_in(const Cell& cell) {
    shared_.sums[0] = cell.sum;
    shared_.values[0] = cell.value;
    shared_.ids[0] = cell.id;
  }

  template <class F>
  __device__ std::uint64_t block_total(F&& measure) {
    std::uint64_t sum = 0;
    for (int i = me_; i < size_; i += kThreads) sum += measure(i);
    return block_sum(sum, shared_.sums);
  }
  template <class F>
  __device__ std::uint64_t total_of(F&& measure) {
    const std::uint64_t mine = block_total(measure);
    return exchange({mine, 0.0f, 0}, [](Cell a, const Cell& b) { return a.sum += b.sum, a; }).sum;
  }

  // ---- the logits ----

  // Into shared memory; false when no token can follow (ops.h: Sample).
  __device__ bool load() {
    const char* row = item_at(a_.logits, blockIdx.x / kBlocks);
    std::int32_t bad = 0, possible = 0;
    // Slices start at multiples of eight.
    for (int i = me_ * 8; i < size_; i += kThreads * 8) {
      float v[8];
      load8(row, a_.logits.type, a_.logits.vector, first_ + i, a_.vocab, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (i + j >= size_) break;
        x_[i + j] = v[j];
        bad |= !(v[j] < INFINITY);
        possible |= v[j] > -INFINITY;
      }
    }
    const int any_bad = __syncthreads_or(bad), any_possible = __syncthreads_or(possible);
    const auto flags = static_cast<std::uint64_t>((any_bad ? 1 : 0) | (any_possible ? 2 : 0));
    return exchange({flags, 0.0f, 0}, [](Cell a, const Cell& b) { return a.sum |= b.sum, a; }).sum == 2;
  }

  // Counts of this slice's tokens, 16 bits each: bit 15 seen at all, the rest how often in the output.
  __device__ void apply_penalties(const SamplingParams& p, const std::int32_t* tokens, std::int32_t count,
                                  std::int32_t prompt_length) {
    if (p.repetition_penalty == 1.0f && p.frequency_penalty == 0.0f && p.presence_penalty == 0.0f) return;
    constexpr std::uint32_t kSeen = 0x8000u, kMost = 0x7fffu;
    for (int i = me_; i < (size_ + 1) / 2; i += kThreads) counts_[i] = 0;
    __syncthreads();
    for (std::int32_t i = me_; i < count; i += kThreads) {
      const std::int32_t token = tokens[i] - first_;
      if (token < 0 || token >= size_) continue;
      std::uint32_t* word = counts_ + token / 2;
      const int shift = token % 2 * 16;
      if (i < prompt_length) {
        atomicOr(word, kSeen << shift);
        continue;
      }
      std::uint32_t old = *word, now;
      do {  // a count stays at its largest value
        now = old;
        const std::uint32_t here = (now >> shift) & 0xffffu;
        const std::uint32_t more = (here & kMost) < kMost ? (here | kSeen) + 1 : here;
        old = atomicCAS(word, now, (now & ~(0xffffu << shift)) | more << shift);
      } while (old != now);
    }
    __syncthreads();
    for (int i = me_; i < size_; i += kThreads) {
      const std::uint32_t seen = (counts_[i / 2] >> (i % 2 * 16)) & 0xffffu;
      if (seen == 0) continue;
      float logit = x_[i] > 0.0f ? x_[i] / p.repetition_penalty : x_[i] * p.repetition_penalty;
      const std::uint32_t outputs = seen & kMost;
      // Rounded step by step, as the CPU does it.
      if (outputs > 0)
        logit = __fsub_rn(logit, __fadd_rn(__fmul_rn(static_cast<float>(outputs), p.frequency_penalty),
                                           p.presence_penalty));
      x_[i] = logit;
    }
    __syncthreads();
  }

  // Of several biases of one token the thread of the first adds all, in their order.
  __device__ void apply_bias(const SamplingParams& p, const LogitBias* bias) {
    for (std::int32_t i = me_; i < p.bias_count; i += kThreads) {
      const std::int32_t token = bias[i].token - first_;
      if (token < 0 || token >= size_) continue;
      bool first = true;
      for (std::int32_t j = 0; j < i && first; ++j) first = bias[j].token != bias[i].token;
      if (!first) continue;
      for (std::int32_t j = i; j < p.bias_count; ++j) {
        if (bias[j].token == bias[i].token) x_[token] += bias[j].value;
      }
    }
    __syncthreads();
  }

  // False when nothing is left. Slices start at multiples of eight, so a word may belong to two blocks.
  __device__ bool apply_mask() {
    const std::int32_t mask_row = a_.s.mask_row[blockIdx.x / kBlocks];
    if (mask_row < 0) return true;
    const std::uint32_t* mask = a_.s.masks + mask_row * mask_words(a_.vocab);
    std::int32_t possible = 0;
    for (int i = me_; i < size_; i += kThreads) {
      const int id = first_ + i;
      if ((mask[id / 32] >> (id % 32) & 1u) == 0) x_[i] = -INFINITY;
      possible |= x_[i] > -INFINITY;
    }
    const auto any = static_cast<std::uint64_t>(__syncthreads_or(possible) != 0);
    return exchange({any, 0.0f, 0}, [](Cell a, const Cell& b) { return a.sum |= b.sum, a; }).sum != 0;
  }

  // The largest logit, ties to the lower id; NaN is passed over.
  __device__ Cell argmax() {
    const auto better = [](Cell a, const Cell& b) {
      return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
    };
    Cell best{0, -INFINITY, kMaxId};
    for (int i = me_; i < size_; i += kThreads)
      best = better(best, {0, x_[i], x_[i] == x_[i] ? first_ + i : kMaxId});
    const auto reduce = [&] {
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        best = better(best, {0, __shfl_xor_sync(0xffffffffu, best.value, step),
                             __shfl_xor_sync(0xffffffffu, best.id, step)});
    };
    reduce();
    if (me_ % 32 == 0) shared_.values[me_ / 32] = best.value, shared_.ids[me_ / 32] = best.id;
    __syncthreads();
    best = me_ % 32 < kWarps ? Cell{0, shared_.values[me_ % 32], shared_.ids[me_ % 32]}
                             : Cell{0, -INFINITY, kMaxId};
    reduce();
    __syncthreads();
    best = exchange(best, better);
    if (best.id == kMaxId) best.id = 0;
    return best;
  }

  // ---- weights and borders ----

  __device__ std::uint32_t weight(float x) const {
    return __float2uint_rn(expf(x - largest_) * 2147483648.0f);
  }
  // Grows with the distance from the largest logit: 11 bits of 1/64ths, then two finer rounds. What is 32 or
  // more away has weight 0 and shares the last keys.
  __device__ std::uint32_t key(float x) const {
    const float units = (largest_ - x) * 64.0f;
    const int a = min(static_cast<int>(units), kBins - 1);
    const float finer = (units - static_cast<float>(a)) * 2048.0f;
    const int b = min(static_cast<int>(finer), kBins - 1);
    const int c = min(static_cast<int>((finer - static_cast<float>(b)) * 1024.0f), 1023);
    return static_cast<std::uint32_t>(a) << 21 | static_cast<std::uint32_t>(b) << 10 |
           static_cast<std::uint32_t>(c);
  }
  __device__ bool kept(const Border& border, int i) const {
    const std::uint32_t k = key(x_[i]);
    return k < border.key || (k == border.key && first_ + i <= border.id);
  }

  // The shortest prefix of what `old` keeps whose measures sum up to `target` or more. REQUIRES: 0 < target
  // <= the sum over all that is kept.
  template <class F>
  __device__ Border cut(const Border& old, std::uint64_t target, F&& measure) {
    std::uint32_t prefix = 0;
    std::uint64_t group = 0;  // the sum over the keys that share the prefix so far
    constexpr int kShifts[3] = {21, 10, 0};
    constexpr int kWidths[3] = {11, 11, 10};
#pragma unroll 1
    for (int level = 0; level < 3; ++level) {
      const int shift = kShifts[level], above = shift + kWidths[level];
      for (int i = me_; i < kBins; i += kThreads) shared_.low[i] = shared_.high[i] = 0;
      __syncthreads();
      for (int i = me_; i < size_; i += kThreads) {
        const std::uint32_t k = key(x_[i]);
        const bool mine = level == 0 || (k >> above) == (prefix >> above);
        if (!mine || !kept(old, i)) continue;
        const std::uint32_t m = measure(x_[i]);
        const std::uint32_t bin = (k >> shift) & ((1u << kWidths[level]) - 1);
        if (m & 0xffffu) atomicAdd(&shared_.low[bin], m & 0xffffu);
        if (m >> 16) atomicAdd(&shared_.high[bin], m >> 16);
      }
      cluster_.sync();
      std::uint64_t before = 0;
      const std::int32_t bin = crossing(target, before, group);
      target -= before;
      prefix |= static_cast<std::uint32_t>(bin) << shift;
    }
    Border border{prefix, kMaxId};
    if (target < group) {  // some of the equals
      const auto of_equals = [&](int i) {
        return key(x_[i]) == prefix && kept(old, i) ? measure(x_[i]) : 0u;
      };
      border.id = find(of_equals, target - 1);
    } else if (prefix == old.key) {
      border.id = old.id;
    }
    return border;
  }

  // The first bin of the cluster's histogram at which the sum reaches `target`, the sum before it and its
  // own.
  __device__ std::int32_t crossing(std::uint64_t target, std::uint64_t& before, std::uint64_t& own) {
    std::uint64_t sum = 0;
    if (me_ < kBinsPerBlock) {
      const int bin = rank_ * kBinsPerBlock + me_;
      for (int r = 0; r < kBlocks; ++r) {
        sum += *cluster_.map_shared_rank(&shared_.low[bin], r);
        sum += static_cast<std::uint64_t>(*cluster_.map_shared_rank(&shared_.high[bin], r)) << 16;
      }
    }
    std::uint64_t upto = sum;
    const int lane = me_ % 32, warp = me_ / 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint64_t other = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto += other;
    }
    if (lane == 31) shared_.sums[warp] = upto;
    __syncthreads();
    for (int w = 0; w < warp && w < kBinsPerBlock / 32; ++w) upto += shared_.sums[w];
    std::uint64_t block_total = 0;
    for (int w = 0; w < kBinsPerBlock / 32; ++w) block_total += shared_.sums[w];
    __syncthreads();
    // Where this block's bins start: the totals of the blocks before it.
    turn_ ^= 1;
    if (me_ == 0) shared_.cell[turn_].sum = block_total;
    cluster_.sync();
    std::uint64_t start = 0, at = 0;
    int owner = kBlocks - 1;
    bool owned = false;
    for (int r = 0; r < kBlocks; ++r) {
      const std::uint64_t total = cluster_.map_shared_rank(&shared_.cell[turn_], r)->sum;
      if (r == rank_) start = at;
      if (!owned && at + total >= target) owner = r, owned = true;
      at += total;
    }
    upto += start;
    if (rank_ == owner && me_ < kBinsPerBlock && upto >= target && upto - sum < target) {
      shared_.found = rank_ * kBinsPerBlock + me_;
      shared_.found_before = upto - sum;
      shared_.sums[kWarps - 1] = sum;
    }
    cluster_.sync();
    before = *cluster_.map_shared_rank(&shared_.found_before, owner);
    own = *cluster_.map_shared_rank(&shared_.sums[kWarps - 1], owner);
    const std::int32_t bin = *cluster_.map_shared_rank(&shared_.found, owner);
    cluster_.sync();  // what was read here may be overwritten from here on
    return bin;
  }

  // The first id, in id order, at which the sum of measures is over `target`.
  template <class F>
  __device__ std::int32_t find(F&& measure, std::uint64_t target) {
    const int lane = me_ % 32, warp = me_ / 32;
    const int stretch = (a_.slice + kThreads - 1) / kThreads * 32;  // of a warp: ids in a row
    const int begin = warp * stretch, end = min(size_, begin + stretch);
    std::uint64_t sum = 0;
    for (int i = begin + lane; i < end; i += 32) sum += measure(i);
    sum = warp_sum(sum);
    if (lane == 0) shared_.sums[warp] = sum;
    __syncthreads();
    std::uint64_t block_total = 0, start = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) start = block_total;
      block_total += shared_.sums[w];
    }
    __syncthreads();
    turn_ ^= 1;
    if (me_ == 0) shared_.cell[turn_].sum = block_total, shared_.found = -1;
    cluster_.sync();
    for (int r = 0; r < rank_; ++r) start += cluster_.map_shared_rank(&shared_.cell[turn_], r)->sum;
    if (start <= target && target < start + sum) {
      std::uint64_t upto = start;
      for (int at = begin; at < end; at += 32) {
        const int i = at + lane;
        std::uint64_t part = i < end ? measure(i) : 0u;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const std::uint64_t other = __shfl_up_sync(0xffffffffu, part, step);
          if (lane >= step) part += other;
        }
        const unsigned over = __ballot_sync(0xffffffffu, upto + part > target);
        if (over != 0) {
          if (lane == 0) shared_.found = first_ + at + __ffs(static_cast<int>(over)) - 1;
          break;
        }
        upto += __shfl_sync(0xffffffffu, part, 31);
      }
    }
    cluster_.sync();
    std::int32_t id = -1;
    for (int r = 0; r < kBlocks; ++r) id = max(id, *cluster_.map_shared_rank(&shared_.found, r));
    cluster_.sync();
    return max(id, 0);
  }

  const SampleArgs& a_;
  cg::cluster_group cluster_;
  Shared& shared_;
  float* x_;               // [size_] logits, then logits over the temperature
  std::uint32_t* counts_;  // [size_ / 2]
  int rank_, first_, size_, me_;
  int turn_ = 0;
  float largest_ = 0.0f;
};

__global__ void __launch_bounds__(kThreads, 2) sample_kernel(const __grid_constant__ SampleArgs a) {
  extern __shared__ __align__(16) char memory[];
  begin_kernel();
  const auto row = static_cast<std::int64_t>(blockIdx.x / kBlocks);
  const std::int32_t index = a.s.row_index[row];
  const std::int32_t slot = index < 0 ? 0 : a.s.step_rows[index].slot;
  const bool writes = blockIdx.x % kBlocks == 0 && threadIdx.x == 0;
  if (slot == 0) {
    if (writes) a.s.out_token[row] = 0;
    return;
  }
  const SequenceState& state = a.s.state;
  std::int32_t* history = state.history + slot * state.history_stride;
  const std::int32_t length = state.length[slot] + a.s.step_rows[index].q_len;
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  float* x = reinterpret_cast<float*>(memory + sizeof(Shared));
  Sampler sampler(a, shared, x, reinterpret_cast<std::uint32_t*>(x + a.slice));
  const SamplingParams params = a.s.params[slot];
  const LogitBias* bias = a.s.bias ? a.s.bias + std::int64_t{slot} * kMaxLogitBias : nullptr;
  const auto tokens = static_cast<std::int32_t>(min(static_cast<std::int64_t>(length), state.history_stride));
  const std::int32_t token = sampler.run(params, bias, history, tokens, state.prompt_length[slot]);
  // Nobody leaves, or changes the history, while another block still reads.
  cg::this_cluster().sync();
  if (!writes) return;
  const std::int32_t next = max(token, 0);
  a.s.out_token[row] = token;
  state.last_token[slot] = next;
  if (length < state.history_stride) history[length] = next;
}

}  // namespace

void CudaOps::sample(const Sample& args, platform::Stream& stream) {
  const std::int64_t vocab = args.logits.cols();
  QUIRE_CHECK(is_matrix(args.logits) && vocab >= 1, "logits rank {} of {}", args.logits.rank, vocab);
  SampleArgs a;
  a.s = args;
  a.logits = rows_of(args.logits);
  a.vocab = static_cast<std::int32_t>(vocab);
  a.slice = static_cast<std::int32_t>((vocab + 8 * kBlocks - 1) / (8 * kBlocks) * 8);
  const std::size_t bytes = sizeof(Shared) + static_cast<std::size_t>(a.slice) * 6;
  QUIRE_CHECK(bytes <= kMostShared, "a vocabulary of {} needs {} bytes of shared memory per block, of {}",
              vocab, bytes, kMostShared);
  static const bool allowed = [] { return allow_shared(sample_kernel, kMostShared), true; }();
  static_cast<void>(allowed);
  launch(stream, sample_kernel, dim3(static_cast<unsigned>(args.logits.rows()) * kBlocks), dim3(kThreads),
         bytes, kBlocks, a);
}

}  // namespace quire::ops::cuda
