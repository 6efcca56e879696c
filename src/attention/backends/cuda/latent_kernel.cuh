// Absorbed latent attention (MLA, DeepSeek-V2): one KV head whose row is [latent 512 | rope 64], V is the
// latent part of the same row, so a tile of keys in shared memory serves both products. 64 rows (heads x
// queries) a block. Four warps make weights: each has 16 rows and all keys of a tile. Eight make sums: each
// has 32 rows and a quarter of V's dims, whose sums fill most registers. So the weights of the next tile are
// made while this one's values are added, which neither product leaves room for in one warp. Weights cross
// over through shared memory. Features are run-time switches.
#pragma once

#include "attention/backends/cuda/stages.cuh"

namespace quire::attention::cuda {

struct LatentLookup {
  const char* row[kTileKeys];
  std::uint32_t live[2];  // bit of each key: it is to be read
};

template <class T_, bool kE4m3_>
struct LatentConfig {
  using T = T_;                                         // of q and out
  using Element = std::conditional_t<kE4m3_, F16, T_>;  // what the products multiply
  static constexpr bool kE4m3 = kE4m3_;
  static constexpr int kQk = 576;
  static constexpr int kV = 512;
  static constexpr int kTileRows = 64;
  static constexpr int kWeightWarps = 4;
  static constexpr int kSumWarps = 8;
  static constexpr int kSumThreads = 32 * kSumWarps;
  static constexpr int kThreads = 32 * (kWeightWarps + kSumWarps);
  static constexpr int kFragments = 2;   // of 16 rows, of a warp that makes sums
  static constexpr int kWarpDims = 128;  // of such a warp
  static constexpr int kRowBytes = kQk * (kE4m3 ? 1 : 2);
  static constexpr int kStageBytes = kTileKeys * kRowBytes;
  static constexpr int kStages = kE4m3 ? 3 : 2;
  static constexpr int kLookups = kStages + 1;

  static constexpr int kQAt = 0;
  static constexpr int kStagesAt = kQAt + kTileRows * kQk * 2;
  static constexpr int kWeightsAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kLookupsAt = kWeightsAt + kTileRows * kTileKeys * 2;
  static constexpr int kRowsAt = kLookupsAt + kLookups * static_cast<int>(sizeof(LatentLookup));
  static constexpr int kShrinkAt = kRowsAt + 2 * kTileRows * 4;  // of the sums so far, by row
  static constexpr int kArrivedAt = kShrinkAt + kTileRows * 4;   // mbarriers: a stage's copies are done
  static constexpr int kMeetingsAt = kArrivedAt + kStages * 8;   // mbarriers: LatentAttend::Meeting
  static constexpr int kLastAt = kMeetingsAt + 4 * 8;
  static constexpr int kPieceAt = kLastAt + 8;
  static constexpr int kScalesAt = kPieceAt + static_cast<int>(sizeof(Piece));  // e4m3 per token
  static constexpr int kRowFactorsAt =
      kScalesAt + (kE4m3 ? kLookups * 2 * kTileKeys * 4 : 0);  // e4m3: of scores
  static constexpr int kSharedBytes = kRowFactorsAt + (kE4m3 ? kTileRows * 4 : 0);
  // At the end of a piece, over the weights.
  static constexpr int kStatsAt = kWeightsAt;
  static constexpr int kFactorsAt = kStatsAt + kTileRows * 8;
  static_assert(kSharedBytes <= 227 * 1024 && kArrivedAt % 8 == 0);
  static_assert(kLookups * kTileKeys <= kThreads);
};

template <class C>
struct LatentAttend {
  using T = typename C::T;
  using Element = typename C::Element;
  static constexpr int kKeyBlocks = kTileKeys / 8;
  // mbarriers. A named barrier of a part of the threads would do for kStageDone, but then racecheck loses
  // track of the block and reports hazards across __syncthreads().
  enum Meeting : int { kWeightsReady, kWeightsDone, kStageDone, kAll, kMeetings };
  static_assert(C::kMeetingsAt + kMeetings * 8 == C::kLastAt);

  const RunParams& p;
  char* shared;
  const int thread = thread_again();
  const int lane = thread % 32;
  const int warp = thread / 32;

  using Scores = float[kKeyBlocks][4];
  struct RowState {      // of the warps that make weights
    float largest[2];    // what totals are relative to, in base-2 units
    float total[2];      // this thread's share
    float largest_v[2];  // what weights are relative to: with scales per token another value
  };
  using Sums = float[C::kFragments][C::kWarpDims / 8][4];

  __device__ LatentAttend(const RunParams& params, char* memory) : p(params), shared(memory) {}

  // The same, with what depends on the thread computed anew: see thread_again().
  __device__ __forceinline__ LatentAttend again() const { return LatentAttend(p, shared); }

  __device__ RowTable rows() const {
    auto* begin = reinterpret_cast<std::int32_t*>(shared + C::kRowsAt);
    return {begin, begin + C::kTileRows};
  }
  __device__ LatentLookup& lookup(int tile) const {
    return reinterpret_cast<LatentLookup*>(shared + C::kLookupsAt)[tile % C::kLookups];
  }
  // e4m3 per token: the keys' scales, then their binary logarithms.
  __device__ float* scales(int tile) const {
    return reinterpret_cast<float*>(shared + C::kScalesAt) + tile % C::kLookups * 2 * kTileKeys;
  }
  __device__ std::uint32_t stage(int tile) const {
    return shared_address(shared + C::kStagesAt + tile % C::kStages * C::kStageBytes);
  }
  __device__ std::uint32_t arrived(int tile) const {
    return shared_address(shared + C::kArrivedAt + tile % C::kStages * 8);
  }
  __device__ float* row_factors() const { return reinterpret_cast<float*>(shared + C::kRowFactorsAt); }
  __device__ float* shrinks() const { return reinterpret_cast<float*>(shared + C::kShrinkAt); }
  __device__ bool makes_sums() const { return warp >= C::kWeightWarps; }
  __device__ std::uint32_t meeting(Meeting which) const {
    return shared_address(shared + C::kMeetingsAt + which * 8);
  }
  // All threads wait for each other, though the two kinds of warps come by different ways.
  __device__ void meet() const { arrive_and_wait(meeting(kAll)); }

  // Whole warps call it, each for the 32 keys of one half of the tile.
  __device__ void look_up(const Piece& piece, const Ahead& ahead, int tile, int slot) const {
    const bool live = ahead.key >= 0;
    std::uint32_t token = live ? static_cast<std::uint32_t>(ahead.key) : 0;
    if (p.step.kv_offsets == nullptr)
      token = p.page_shift >= 0 ? token & ((1u << p.page_shift) - 1)
                                : token % static_cast<std::uint32_t>(p.page_size);
    LatentLookup& at = lookup(tile);
    at.row[slot] = piece.k + ahead.page * p.k_stride.page + token * p.k_stride.token;
    const std::uint32_t bits = __ballot_sync(0xffffffffu, live);
    if (slot % 32 == 0) at.live[slot / 32] = bits;
    if (!C::kE4m3 || p.scale_kind != 3) return;
    const std::int64_t scale_at =
        piece.scale + ahead.page * p.scale_stride.page + token * p.scale_stride.token;
    const float scale = live ? *reinterpret_cast<const float*>(p.k_scale + scale_at) : 0.0f;
    scales(tile)[slot] = scale;
    scales(tile)[kTileKeys + slot] = __log2f(scale);
  }

  // By the threads that make sums.
  __device__ __forceinline__ void fetch(const Piece& piece, int tile) const {
    if (tile >= piece.tiles) return;
    const LatentLookup& at = lookup(tile);
    fetch_rows<C::kRowBytes, C::kSumThreads>(stage(tile), at.row, at.live, C::kRowBytes, p.kv_aligned);
    copy_arrive(arrived(tile));
  }

  // scores = Q K^T of 16 rows and the tile.
  __device__ __forceinline__ void scores_of(Scores& s, std::uint32_t tile) const {
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[b][e] = 0;
    constexpr int kParts = C::kE4m3 ? 2 : 1;
    constexpr int kPairs = kKeyBlocks / 2;
    const RowSteps<C::kQk * 2> q_at(shared_address(shared + C::kQAt), warp * 16 + lane % 16, lane / 16);
    const RowSteps<C::kRowBytes> k_at(tile, (lane & 7) + lane / 16 * 8, lane / 8 % 2);
    std::uint32_t q[2][kParts][4], k[2][4];
    const auto load_q = [&](int step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) load_matrix_4(q[step % 2][part], q_at(step * kParts + part));
    };
    load_q(0);
    load_matrix_4(k[0], k_at(0));
    constexpr int kSteps = C::kRowBytes / 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) load_q(step + 1);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int next = step * kPairs + pair + 1;
        if (next < kSteps * kPairs)
          load_matrix_4(k[next % 2], k_at(next / kPairs) + next % kPairs * 16 * C::kRowBytes);
        const std::uint32_t(&now)[4] = k[pair % 2];
        if constexpr (C::kE4m3) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // i: key block i / 2, dims 16 * (i % 2)
            std::uint32_t low, high;
            from_e4m3_row<Element>(now[i], low, high);
            Element::mma(s[pair * 2 + i / 2], q[step % 2][i % 2], low, high);
          }
        } else {
          Element::mma(s[pair * 2], q[step % 2][0], now[0], now[1]);
          Element::mma(s[pair * 2 + 1], q[step % 2][0], now[2], now[3]);
        }
      }
    }
  }

  __device__ int row_of(int half) const { return warp * 16 + half * 8 + lane / 4; }

  // Scores to base-2 units where a factor alone does not do it.
  __device__ __forceinline__ void shape_scores(Scores& s, const ScoreRule& rule,
                                               const float* k_scales) const {
    const float cap2 = rule.cap * kLog2e;
    const float inverse = 1.0f / cap2;
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = s[b][e] * rule.factor;
        if (C::kE4m3) x *= row_factors()[row_of(e / 2)];
        if (rule.per_token) x *= k_scales[b * 8 + lane % 4 * 2 + e % 2];
        s[b][e] = rule.cap > 0 ? capped(x, cap2, inverse) : x;
      }
  }

  __device__ __forceinline__ void hide_scores(Scores& s, const Piece& piece, std::int32_t tile_key) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t word = seen_bits(p, piece, rows(), row_of(half), tile_key) >> (lane % 4 * 2);
#pragma unroll
      for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (((word >> (b * 8 + e)) & 1) == 0) s[b][half * 2 + e] = -INFINITY;
    }
  }

  // Makes room for the scores of a tile: where one is far above `largest`, that becomes the largest score.
  // `shrink`: what the weights of the two rows so far are to be multiplied by. score(b, e) times factor: in
  // base-2 units.
  template <class F>
  __device__ __forceinline__ void settle(F&& score, float factor, float (&largest)[2],
                                         float (&shrink)[2]) const {
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = score(0, half * 2);
#pragma unroll
      for (int b = 0; b < kKeyBlocks; ++b)
        top[half] = fmaxf(top[half], fmaxf(score(b, half * 2), score(b, half * 2 + 1)));
      top[half] *= factor;
      shrink[half] = 1;
    }
    if (!__any_sync(0xffffffffu, top[0] > largest[0] + kSlack || top[1] > largest[1] + kSlack)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
      all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 2));
      const float before = largest[half];
      largest[half] = fmaxf(before, all);
      shrink[half] = exp2_fast(before - largest[half]);
    }
  }

  // Scores to weights, and with scales per token to weights times scale, of which the largest comes near 1.
  // `log_scales`: null without scales per token.
  __device__ __forceinline__ void soften(Scores& s, RowState& state, float factor, const float* log_scales,
                                         float (&shrink)[2]) const {
    settle([&](int b, int e) { return s[b][e]; }, factor, state.largest, shrink);
    state.total[0] *= shrink[0];
    state.total[1] *= shrink[1];
    const bool apart = C::kE4m3 && log_scales != nullptr;
    const auto scaled = [&](int b, int e) { return s[b][e] + log_scales[b * 8 + lane % 4 * 2 + e % 2]; };
    if (apart) settle(scaled, 1, state.largest_v, shrink);
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float weight = exp2_fast(fmaf(s[b][e], factor, -state.largest[e / 2]));
        state.total[e / 2] += weight;
        s[b][e] = apart ? exp2_fast(scaled(b, e) - state.largest_v[e / 2]) : weight;
      }
  }

  __device__ void make_weights(const Piece& piece, RowState& state, const ScoreRule& rule) const {
    const bool shaped = C::kE4m3 || rule.cap > 0;
    const float factor = shaped ? 1.0f : rule.factor;
    Ahead ahead;
    if (thread < kTileKeys) ahead = ask(p, piece, rows(), C::kLookups, thread);
    for (int tile = 0; tile < piece.tiles; ++tile) {
      wait_arrival(arrived(tile), tile / C::kStages % 2);
      Scores s;
      again().scores_of(s, stage(tile));
      if (shaped) again().shape_scores(s, rule, scales(tile));
      const std::int32_t tile_key = (piece.first_tile + tile) * kTileKeys;
      if (tile_key < piece.unit.full_begin || tile_key + kTileKeys > piece.unit.full_end) [[unlikely]]
        again().hide_scores(s, piece, tile_key);
      float shrink[2];
      soften(s, state, factor, rule.per_token ? scales(tile) + kTileKeys : nullptr, shrink);
      if (tile > 0) {
        wait_arrival(meeting(kWeightsDone), (tile - 1) % 2);
        // Now nobody reads the scales of tile - 1, whose place these take.
        if (thread < kTileKeys) {
          look_up(piece, ahead, tile - 1 + C::kLookups, thread);
          ahead = ask(p, piece, rows(), tile + C::kLookups, thread);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (lane % 4 == 0) shrinks()[row_of(half)] = shrink[half];
#pragma unroll
        for (int b = 0; b < kKeyBlocks; ++b) {
          const std::uint32_t at = chunk_at<kTileKeys * 2>(row_of(half), b) + lane % 4 * 4;
          *reinterpret_cast<std::uint32_t*>(shared + C::kWeightsAt + at) =
              Element::pack(s[b][half * 2], s[b][half * 2 + 1]);
        }
      }
      arrive(meeting(kWeightsReady));
    }
  }

  __device__ int sum_row(int f, int half) const {
    return (warp - C::kWeightWarps) / 4 * 32 + f * 16 + half * 8 + lane / 4;
  }
  __device__ int first_dim() const { return warp % 4 * C::kWarpDims; }

  __device__ __forceinline__ void shrink_sums(Sums& sums) const {
    float by[C::kFragments][2];
    bool shrink = false;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        by[f][half] = shrinks()[sum_row(f, half)];
        shrink = shrink || by[f][half] != 1.0f;
      }
    if (!__any_sync(0xffffffffu, shrink)) return;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < C::kWarpDims / 8; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[f][b][e] *= by[f][e / 2];
  }

  // sums += P V of 32 rows and 128 dims.
  __device__ __forceinline__ void add_values(Sums& sums, std::uint32_t tile) const {
    constexpr int kGroups = C::kWarpDims * (C::kE4m3 ? 1 : 2) / 32;  // 32 bytes of a row
    constexpr int kSteps = kTileKeys / 16;
    const RowSteps<kTileKeys * 2> p_at(shared_address(shared + C::kWeightsAt),
                                       (warp - C::kWeightWarps) / 4 * 32 + lane % 16, lane / 16);
    const RowSteps<C::kRowBytes> v_at(tile + first_dim() * (C::kE4m3 ? 1 : 2), lane % 16, lane / 16);
    std::uint32_t v[2][4];
    load_matrix_4_transposed(v[0], v_at(0));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[C::kFragments][4];
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) load_matrix_4(a[f], p_at(step) + f * 16 * kTileKeys * 2);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int next = step * kGroups + group + 1;
        if (next < kSteps * kGroups)
          load_matrix_4_transposed(v[next % 2], v_at(next % kGroups) + next / kGroups * 16 * C::kRowBytes);
        const std::uint32_t(&now)[4] = v[group % 2];
        if constexpr (C::kE4m3) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {  // 16 dims: the even ones in one block of 8, the odd ones in the next
            std::uint32_t even[2], odd[2];
            from_e4m3_columns<Element>(now[2 * i], even[0], odd[0]);
            from_e4m3_columns<Element>(now[2 * i + 1], even[1], odd[1]);
#pragma unroll
            for (int f = 0; f < C::kFragments; ++f) {
              Element::mma(sums[f][group * 4 + i * 2], a[f], even[0], even[1]);
              Element::mma(sums[f][group * 4 + i * 2 + 1], a[f], odd[0], odd[1]);
            }
          }
        } else {
#pragma unroll
          for (int f = 0; f < C::kFragments; ++f) {
            Element::mma(sums[f][group * 2], a[f], now[0], now[1]);
            Element::mma(sums[f][group * 2 + 1], a[f], now[2], now[3]);
          }
        }
      }
    }
  }

  __device__ void make_sums(const Piece& piece, Sums& sums) const {
    for (int tile = 0; tile < piece.tiles; ++tile) {
      wait_arrival(meeting(kWeightsReady), tile % 2);
      wait_arrival(arrived(tile), tile / C::kStages % 2);  // what the other warps have seen, these must see
      shrink_sums(sums);
      again().add_values(sums, stage(tile));
      arrive(meeting(kWeightsDone));
      arrive_and_wait(meeting(kStageDone));
      fetch(piece, tile + C::kStages);
    }
  }

  __device__ void start(const Piece& piece) const {
    const RowTable table = rows();
    for (int row = thread; row < C::kTileRows; row += C::kThreads) {
      RowKeys keys;
      if (row < piece.rows) keys = row_keys(p.step, piece.unit, (piece.unit.first_row + row) / p.ratio);
      table.begin[row] = keys.begin;
      table.end[row] = keys.end;
    }
    if (thread < C::kStages) start_arrivals(arrived(thread), C::kSumThreads);
    if (thread == C::kStages) {
      start_arrivals(meeting(kWeightsReady), 32 * C::kWeightWarps);
      start_arrivals(meeting(kWeightsDone), C::kSumThreads);
      start_arrivals(meeting(kStageDone), C::kSumThreads);
      start_arrivals(meeting(kAll), C::kThreads);
    }
    __syncthreads();
    const int tile = thread / kTileKeys;
    const int slot = thread % kTileKeys;
    if (tile < C::kLookups) look_up(piece, ask(p, piece, table, tile, slot), tile, slot);
    __syncthreads();
    if (makes_sums())
      for (int first = 0; first < C::kStages; ++first) fetch(piece, first);
    fetch_queries<C::kQk, C::kTileRows, C::kThreads, C::kE4m3>(p, piece, shared + C::kQAt);
    __syncthreads();
    if constexpr (C::kE4m3) {
      if (!makes_sums()) queries_to_f16();
    }
  }

  // The 16 rows of a warp that makes weights, two lanes a row, from T to f16 and into its range.
  __device__ void queries_to_f16() const {
    constexpr int kWords = C::kQk / 2;
    const int row = warp * 16 + lane / 2;
    auto* words = reinterpret_cast<std::uint32_t*>(shared + C::kQAt) + row * kWords;
    // Each row from a place of its own on, since they lie in the same banks.
    const auto each_word = [&](auto&& call) {
      for (int i = lane; i < kWords + lane; i += 2) call(words[i < kWords ? i : i - kWords]);
    };
    int shift = 0;
    if constexpr (!std::is_same_v<T, Element>) {
      float most = 0;
      each_word([&](std::uint32_t word) {
        const float2 x = unpack_bf16(word);
        most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
      });
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      shift = f16_shift(most);
      const float scale = power_of_two(shift);
      each_word([&](std::uint32_t& word) {
        const float2 x = unpack_bf16(word);
        word = F16::pack(x.x * scale, x.y * scale);
      });
    }
    if (lane % 2 == 0) row_factors()[row] = power_of_two(-shift);
    __syncwarp();
  }

  // call(row, dim, x, y) for each pair of neighbouring dims that the thread holds.
  template <class F>
  __device__ __forceinline__ void each_sum(const Sums& sums, F&& call) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < C::kWarpDims / 8; b += 2)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* x = &sums[f][b][half * 2];
          const float* y = &sums[f][b + 1][half * 2];
          const int row = sum_row(f, half);
          const int dim = first_dim() + b * 8;
          const int c = lane % 4;
          if (C::kE4m3) {  // columns 2c, 2c + 1 of the blocks are dims 4c, 4c + 2 and 4c + 1, 4c + 3
            call(row, dim + 4 * c, x[0], y[0]);
            call(row, dim + 4 * c + 2, x[1], y[1]);
          } else {
            call(row, dim + 2 * c, x[0], x[1]);
            call(row, dim + 8 + 2 * c, y[0], y[1]);
          }
        }
  }

  template <class Each>
  __device__ __forceinline__ void finish(const Piece& piece, std::int64_t part, Each&& each) const {
    finish_piece<T>(
        p, piece, part, C::kTileRows, C::kV, reinterpret_cast<RowStat*>(shared + C::kStatsAt),
        reinterpret_cast<float*>(shared + C::kFactorsAt),
        reinterpret_cast<std::int32_t*>(shared + C::kLastAt), [this] { meet(); }, each);
  }

  __device__ void run_piece(const Piece& piece, std::int64_t part) const {
    start(piece);
    run_roles(piece, part);
    __syncthreads();  // nobody waits at these any more, and the shared memory is free
    if (thread < C::kStages) end_arrivals(arrived(thread));
    if (thread < kMeetings) end_arrivals(meeting(static_cast<Meeting>(thread)));
  }

  __device__ __forceinline__ void run_roles(const Piece& piece, std::int64_t part) const {
    if (makes_sums()) {
      Sums sums;
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
        for (int b = 0; b < C::kWarpDims / 8; ++b)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[f][b][e] = 0;
      make_sums(piece, sums);
      meet();  // stats are there
      if (C::kE4m3) shrink_sums(sums);
      const LatentAttend ending = again();
      ending.finish(piece, part, [&](auto&& emit) { ending.each_sum(sums, emit); });
    } else {
      const ScoreRule rule = score_rule<C>(p, piece);
      RowState state{{kNoScore, kNoScore}, {0, 0}, {kNoScore, kNoScore}};
      make_weights(piece, state, rule);
      wait_arrival(meeting(kWeightsDone), (piece.tiles - 1) % 2);  // whose place the stats take
      store_stats(state, rule.per_token);
      meet();
      finish(piece, part, [](auto&&) {});
    }
  }

  __device__ void store_stats(RowState& state, bool apart) const {
    auto* stats = reinterpret_cast<RowStat*>(shared + C::kStatsAt);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& total = state.total[half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (lane % 4 != 0) continue;
      stats[row_of(half)] = stat_of(state.largest[half], total);
      // From what the sums are relative to, to what the totals are.
      if (C::kE4m3)
        shrinks()[row_of(half)] = apart ? exp2_fast(state.largest_v[half] - state.largest[half]) : 1.0f;
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) attend_latent(const __grid_constant__ RunParams p) {
  attend_part<C, LatentAttend<C>>(p);
}

}  // namespace quire::attention::cuda
