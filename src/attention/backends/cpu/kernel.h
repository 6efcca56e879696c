// The arithmetic of the cpu row, compiled once per instruction set: kernel_portable.cc, kernel_avx2.cc and
// kernel_avx512.cc each include kernel.inl and export one table of function pointers. Plain data only; the
// driver (attend.cc, built for the baseline) chooses a table once and decides what is computed.
//
// What makes a row's bits independent of its neighbours (level schedule_invariant): keys are taken in
// tiles at absolute multiples of kTileKeys and splits at absolute multiples of kSplitKeys; splits are joined
// in key order to runs of kRunSplits, at absolute multiples too, and runs in key order; a score is
// kChains interleaved chains of multiply-adds over the dim, summed by one fixed tree, whether the vector
// lanes hold dims (few rows) or keys (many rows); values are added key after key. A row to which a tile or
// a key is invisible is left as it was, exactly. So the choice between the two ways is one of speed.
#pragma once

#include <cstdint>

// Small constant loops over registers must vanish: left as loops, their arrays live in memory.
#define QUIRE_UNROLL _Pragma("GCC unroll 16")

namespace quire::attention::cpu {

inline constexpr int kTileKeys = 64;    // bits of a visibility word
inline constexpr int kSplitKeys = 512;  // a multiple of kTileKeys
inline constexpr int kRunSplits = 4;
inline constexpr int kChains = 8;             // partial sums of one score
inline constexpr int kParked = 32 * kChains;  // floats of TileArgs::chains
inline constexpr int kFewRows = 8;            // up to here tiles are read in place, above they are packed
inline constexpr int kMaxRows = 96;           // (row, head) pairs of one block
inline constexpr int kMaxDim = 576;
inline constexpr int kPanel = 32;  // widest panel of packed keys or dims; acc rows are padded to it
inline constexpr float kNoKey = -__builtin_huge_valf();  // maximum of a row that has seen no key

// How an element of the cache is stored; the index of Kernels::tile.
enum KvElement : int { kF32 = 0, kBf16 = 1, kF16 = 2, kFp8 = 3, kKvElements = 4 };

// One tile against one block of rows. Rows are (query row, head) pairs that share a KV head.
struct TileArgs {
  int rows = 0;
  int qk_dim = 0;  // multiples of 16
  int v_dim = 0;
  int acc_stride = 0;   // v_dim padded to kPanel
  bool packed = false;  // rows > kFewRows; then q_packed, k_pack, v_pack are used
  // All keys are seen, and cache rows lie one behind the other: only k[0], v[0] and next_k[0] are set.
  bool stretch = false;
  bool fresh = false;  // acc holds nothing yet: the tile writes it whole
  // [kTileKeys] cache rows; keys that no row sees point at zeros.
  const void* const* k = nullptr;
  const void* const* v = nullptr;
  const void* const* next_k = nullptr;     // keys of the tile to come, to be fetched meanwhile, or null
  std::uint64_t any = 0;                   // union of visible, not 0
  const std::uint64_t* visible = nullptr;  // [rows] bit j: key j of the tile
  // [rows] -> [qk_dim] in lane order, one behind the other; not packed
  const float* const* q_lanes = nullptr;
  const float* q_packed = nullptr;  // [rows, qk_dim] in chain order; packed
  const float* k_scale = nullptr;   // [kTileKeys] or null
  const float* v_scale = nullptr;
  float scale = 1.0f;    // of a score, static K scale included
  float softcap = 0.0f;  // 0: none
  // State of the rows: running maximum (of the powers of 2), sum of weights, weighted sum of values. Rows
  // that have seen no key yet: kNoKey, 0, and acc as it is where `fresh`, else zeros.
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
  float* acc = nullptr;  // [rows, acc_stride]
  // Scratch, 64-byte aligned.
  float* scores = nullptr;  // [rows, kTileKeys]
  float* alpha = nullptr;   // [rows]
  float* chains = nullptr;  // [kParked]: of a block of keys whose scores are not made yet
  float* k_pack = nullptr;  // kTileKeys * qk_dim
  float* v_pack = nullptr;  // kTileKeys * acc_stride
};

// One entry per element type where the order of dims depends on it: what a vector of 8 lanes holds (lane
// order), and that again chain by chain (chain order). The sums of values are in lane order throughout.
struct Kernels {
  void (*tile[kKvElements])(const TileArgs& args);
  // Order a query row [dim] for tiles read in place and for packed ones.
  void (*q_by_lane[kKvElements])(const float* q, int dim, float* to);
  void (*q_by_chain[kKvElements])(const float* q, int dim, float* to);
  // out [dim] = acc * factor, back in the order of the dims.
  void (*write[kKvElements])(float* out, const float* acc, float factor, int dim);
  // Tiles of these dims, not packed, may be a stretch.
  bool (*takes_stretch)(int qk_dim, int v_dim);
  // What a stored element is times this to give its value (fp8 is read as a scaled half).
  float unit[kKvElements];
  // Addresses of `count` cache rows, `stride` bytes apart.
  void (*place_rows)(const void** to, const char* row, std::int64_t stride, int count);
  // Joins later parts of rows into earlier ones: (max, sum, acc) <- both. Either may have seen no key; then
  // its acc is not read. acc is [rows, dim]; all arrays of a float per row have space for kMaxRows.
  void (*fold)(int rows, int dim, float* max, float* sum, float* acc, const float* part_max,
               const float* part_sum, const float* const* part_acc);
};

const Kernels& kernels_portable();
const Kernels& kernels_avx2();    // REQUIRES the processor has it
const Kernels& kernels_avx512();  // REQUIRES the processor has it

}  // namespace quire::attention::cpu
