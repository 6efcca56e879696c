// Where F is F8 (AVX2, portable): a vector holds dims of one key, and 8 keys' scores are summed at once.
// Included inside an anonymous namespace (see kernel.inl), after sum_chains.
#pragma once

constexpr int kKeysOfVector = 1;
constexpr int kKeyBlock = 8;
constexpr int key_of_vector(int n) { return n; }

inline F zero() { return zero8(); }
inline F load_query(const float* q) { return load(q); }

template <KvElement E, class Rows>
inline void load_keys(Rows keys, std::int64_t j, int u, F& a, F& b) {
  load16<E>(keys.at(j), u, a, b);
}

template <KvElement E>
inline void load_panel(const void* row, int n, int, F& a, F& b) {
  load16<E>(row, n, a, b);
}

// The chains wait in memory until those of 8 keys are there; they are summed then, at once.
template <int kRows, int kVectors>
struct ChainSums {
  static constexpr int kSteps = 0;  // left to do later
  static_assert(kKeyBlock % kVectors == 0 && kRows * kKeyBlock * kChains <= kParked);

  static void park(const F (&acc)[kRows][kVectors], std::int64_t j, float* chains, float* scores) {
    const auto first = static_cast<int>(j % kKeyBlock);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) store(chains + (r * kKeyBlock + first + n) * kChains, acc[r][n]);
    if (first + kVectors < kKeyBlock) return;
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      F x[kKeyBlock];
      QUIRE_UNROLL
      for (int n = 0; n < kKeyBlock; ++n) x[n] = load(chains + (r * kKeyBlock + n) * kChains);
      store(scores + r * kTileKeys - first, sum_chains(x));
    }
  }
  void step(int, const float*, float*) {}
};
