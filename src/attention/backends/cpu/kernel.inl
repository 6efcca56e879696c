// Body of kernel_*.cc, included once in each, inside an anonymous namespace and after the vector types of
// that instruction set:
//   F8    8 lanes: load, store, zero, fma, add, mul; transpose8 over 8 of them
//   F     kLanes lanes: the same and set, sub, max, div, select by mask bits, ...
//   load16<KvElement>(row, u, &a, &b): dims [16u, 16u + 16) of a cache row, in lane order (dim_of)
//   load_keys<KvElement>(rows, j, u, &a, &b): the same of kKeysOfVector keys from j on, 8 lanes each,
//     kKeyStep apart
//   load_panel<KvElement>(row, n, dims, &a, &b): dims [n * kPanelWidth, dims) of a cache row, as many as two
//     vectors hold and zeros past the last; lanes as place_of says
//   ChainSums: sums the chains of a block of keys and stores the scores, at once or while the next are made
// No std:: here: an inline function of the library compiled with these flags must not become the
// program's only copy.

constexpr float kLowest = -3.4e38f;
constexpr float kLog2E = 1.44269504088896f;
constexpr int kPanelWidth = 2 * kLanes;
static_assert(kPanelWidth <= kPanel && kTileKeys % kPanelWidth == 0);

// The dim in lane c of 8-lane vector t of a row of keys. Two bf16 share a word: its halves are the lanes of
// two vectors, a shift and a mask apart, which is cheaper than spreading eight of them over one.
template <KvElement E>
constexpr int dim_of(int t, int c) {
  return E == kBf16 ? t / 2 * 16 + 2 * c + t % 2 : 8 * t + c;
}

// Where the sum of the values of a dim lies: panels of two vectors, filled as above.
template <KvElement E>
constexpr int place_of(int dim) {
  return E == kBf16 ? dim / kPanelWidth * kPanelWidth + dim % 2 * kLanes + dim % kPanelWidth / 2 : dim;
}

struct KeyRange {
  int begin, end;
};

// The keys of the tile that somebody sees, rounded outwards.
inline KeyRange visible_range(std::uint64_t any, int multiple) {
  const int first = __builtin_ctzll(any);
  const int last = 64 - __builtin_clzll(any);
  return {first / multiple * multiple, (last + multiple - 1) / multiple * multiple};
}

// ---- exp and tanh: about 1 ulp, exact at 0 ----

// 2^x for x that is not above 0, or by no more than rounding; below -126 it is 0. The steps before the
// polynomial are additions, which leave the multiply-add units to others.
inline F exp2_nonpositive(F x) {
  const F magic = set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F shifted = add(x, magic);
  const F r = sub(x, sub(shifted, magic));  // exact, of size 1/2 at most
  // The least largest relative error with p(0) = 1: 9e-8.
  F p = set(1.3264729733709662e-3f);
  p = fma(p, r, set(9.671514722579704e-3f));
  p = fma(p, r, set(5.550733756259242e-2f));
  p = fma(p, r, set(2.4022242053462e-1f));
  p = fma(p, r, set(6.931469775801399e-1f));
  p = fma(p, r, set(1.0f));
  return zero_where_below(add_exponent(p, shifted), x, -126.0f);
}

inline F tanh_of(F x) {
  const F a = max(x, sub(set(0.0f), x));
  const F e = exp2_nonpositive(mul(a, set(-2.0f * kLog2E)));
  const F big = div(sub(set(1.0f), e), add(set(1.0f), e));
  const F z = mul(a, a);
  F p = set(-5.70498872745e-3f);
  p = fma(p, z, set(2.06390887954e-2f));
  p = fma(p, z, set(-5.37397155531e-2f));
  p = fma(p, z, set(1.33314422036e-1f));
  p = fma(p, z, set(-3.33332819422e-1f));
  const F small = fma(mul(p, z), a, a);
  return with_sign_of(select_below(a, 0.625f, small, big), x);
}

// ---- few rows: the cache is read in place, lanes hold dims ----

constexpr int kNear = 3;       // a level for the compiler: the first
constexpr int kFirstRows = 8;  // what a tile's loops begin with, as far as it is long
constexpr int kNearRows = 4;   // of values, ahead of those that are multiplied

// Inlined by force: a call to a function that only prefetches has no effect in the eyes of GCC 12, which
// leaves it out.
template <int kLevel>
[[gnu::always_inline]] inline void fetch_row(const void* row, int bytes) {
  for (int at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(row) + at, 0, kLevel);
}

// Where the cache rows of a tile are: an address each, or one behind the other from the first on. The latter
// costs no loads of addresses, and what lies ahead is a constant away.
struct Listed {
  const void* const* rows;
  const char* at(std::int64_t j) const { return static_cast<const char*>(rows[j]); }
};
template <int kBytes>
struct Stretch {
  explicit Stretch(const void* const* rows) : first(static_cast<const char*>(rows[0])) {}
  const char* first;
  const char* at(std::int64_t j) const { return first + j * kBytes; }
};

// Cache rows to be fetched while something else is computed, a few lines at a time: in bursts they would fill
// the miss buffers, stall the loads of what is in hand and leave memory idle afterwards.
template <class Rows>
struct Fetch {
  Rows rows;
  Rows near_rows;      // kFetchNear: are in the second level, go into the first
  std::int64_t first;  // of rows
  std::int64_t near_first;
  int count;  // of either; 0: nothing to fetch
  int bytes;  // of a row
};

// Dims [16 u, 16 u + 16) of the chains.
template <KvElement E, int kRows, int kVectors, class Rows>
inline void chain_step(const float* const* q, Rows k, std::int64_t j, int u, F (&acc)[kRows][kVectors]) {
  // All of a step at once where the registers suffice; else its two vectors one after the other.
  constexpr int kPasses = kRows * (kVectors + 2) + 4 <= kRegisters ? 1 : 2;
  QUIRE_UNROLL
  for (int pass = 0; pass < kPasses; ++pass) {
    F qa[kRows], qb[kRows];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (kPasses == 1 || pass == 0) qa[r] = load_query(q[r] + 16 * u);
      if (kPasses == 1 || pass == 1) qb[r] = load_query(q[r] + 16 * u + 8);
    }
    QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) {
      F a, b;
      load_keys<E>(k, j + key_of_vector(n), u, a, b);
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (kPasses == 1 || pass == 0) acc[r][n] = fma(qa[r], a, acc[r][n]);
        if (kPasses == 1 || pass == 1) acc[r][n] = fma(qb[r], b, acc[r][n]);
      }
    }
  }
}

// kDim > 0: the dim is known, and the rows of q lie one behind the other. The scores of the chains that are
// parked are made meanwhile.
template <KvElement E, int kRows, int kVectors, int kDim, class Rows>
inline void chains_of(const float* const* q, Rows k, std::int64_t j, int dim, Fetch<Rows> fetch,
                      const float* parked, float* parked_scores, F (&acc)[kRows][kVectors]) {
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) QUIRE_UNROLL
  for (int n = 0; n < kVectors; ++n) acc[r][n] = zero();
  if constexpr (kDim > 0) {
    constexpr int kSteps = kDim / 16;
    constexpr int kKeys = kVectors * kKeysOfVector;
    const float* rows[kRows];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) rows[r] = q[0] + r * kDim;
    using Sums = ChainSums<kRows, kVectors>;
    Sums sums;
    QUIRE_UNROLL
    for (int u = 0; u < kSteps; ++u) {
      if (fetch.count > 0) QUIRE_UNROLL
      for (int n = u * kKeys / kSteps; n < (u + 1) * kKeys / kSteps; ++n) {
        fetch_row<kFetchLevel>(fetch.rows.at(fetch.first + n), kDim * kElementBytes[E]);
        if (kFetchNear) fetch_row<kNear>(fetch.near_rows.at(fetch.near_first + n), kDim * kElementBytes[E]);
      }
      chain_step<E>(rows, k, j, u, acc);
      for (int i = u * Sums::kSteps / kSteps; i < (u + 1) * Sums::kSteps / kSteps; ++i)
        sums.step(i, parked, parked_scores);
    }
  } else {
    const int steps = dim / 16;
    for (int u = 0, due = 0, fetched = 0; u < steps; ++u) {
      for (due += fetch.count; due >= steps; due -= steps)
        fetch_row<kFetchLevel>(fetch.rows.at(fetch.first + fetched++), fetch.bytes);
      chain_step<E>(q, k, j, u, acc);
    }
  }
}

// Scores of the chains that no block follows.
template <int kRows, int kVectors>
inline void sum_parked(const float* chains, float* scores) {
  ChainSums<kRows, kVectors> sums;
  QUIRE_UNROLL
  for (int i = 0; i < sums.kSteps; ++i) sums.step(i, chains, scores);
}

// The values of the same keys are fetched meanwhile: they are next. A function of its own, as values_block
// is: inlined into one, the loops would share registers and spill.
template <KvElement E, int kRows, int kDim, class Rows>
[[gnu::noinline]] void scores_in_place_rows(const TileArgs& a, int row, KeyRange keys, bool fetch) {
  constexpr int kVectors = kVectorsAtOnce[kRows];
  constexpr int kKeys = kVectors * kKeysOfVector;
  const Rows k{a.k};
  const Rows v{a.v};
  // The first block finds chains of another tile parked; what they give is written over by its own.
  float* scores = a.scores + row * kTileKeys + keys.begin;
  for (std::int64_t j = keys.begin; j < keys.end; j += kKeys) {
    F acc[kRows][kVectors];
    const std::int64_t following = j + kKeys < keys.end ? j + kKeys : j;
    const Fetch<Rows> ahead{v, k, j, following, fetch ? kKeys : 0, a.v_dim * kElementBytes[E]};
    chains_of<E, kRows, kVectors, kDim>(a.q_lanes + row, k, j, a.qk_dim, ahead, a.chains, scores, acc);
    scores = a.scores + row * kTileKeys + j;
    ChainSums<kRows, kVectors>::park(acc, j, a.chains, scores);
    if constexpr (kDim == 0) sum_parked<kRows, kVectors>(a.chains, scores);
  }
  if constexpr (kDim > 0) sum_parked<kRows, kVectors>(a.chains, scores);
}

// Calls f.run<n>(row, first) for all rows, 4 at a time; `first` is true once.
template <class F1>
inline void for_few_rows(int rows, F1 f) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) f.template run<4>(row, row == 0);
  switch (rows - row) {
    case 3:
      return f.template run<3>(row, row == 0);
    case 2:
      return f.template run<2>(row, row == 0);
    case 1:
      return f.template run<1>(row, row == 0);
    default:
      return;
  }
}

template <KvElement E, int kDim, class Rows>
struct ScoresInPlace {
  const TileArgs& a;
  KeyRange keys;
  template <int kRows>
  void run(int row, bool first) const {
    scores_in_place_rows<E, kRows, kDim, Rows>(a, row, keys, first);
  }
};

inline bool one_stretch(Listed rows, KeyRange keys, int bytes) {
  const int last = keys.end - 1;
  return rows.at(last) - rows.at(keys.begin) == std::int64_t{bytes} * (last - keys.begin);
}
template <int kBytes>
inline bool one_stretch(Stretch<kBytes>, KeyRange, int) {
  return true;
}

// Panels [panel, panel + kPanels) of the sums. Of the next tile's keys the same bytes are fetched.
template <KvElement E, int kRows, int kPanels, int kDim, class Rows>
[[gnu::noinline]] void values_block(const TileArgs& a, int row, int panel, KeyRange keys, bool fetch) {
  constexpr int kVectors = 2 * kPanels;
  constexpr int kBytes = kPanels * kPanelWidth * kElementBytes[E];
  const int v_dim = kDim > 0 ? kDim : a.v_dim;
  const int acc_stride = kDim > 0 ? kDim : a.acc_stride;
  F acc[kRows][kVectors];
  float* base = a.acc + row * acc_stride + panel * kPanelWidth;
  const float* p = a.scores + row * kTileKeys;
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const F alpha = set(a.alpha[row + r]);
    QUIRE_UNROLL
    for (int s = 0; s < kVectors; ++s)
      acc[r][s] = a.fresh ? zero() : mul(load_wide(base + r * acc_stride + s * kLanes), alpha);
  }
  const Rows v{a.v};
  const Rows next{fetch && a.next_k != nullptr ? a.next_k : a.v};
  const int ahead = panel * kPanelWidth * kElementBytes[E];
  // Rows of several pages go into the first level whole, with the first panel: the others find them there.
  const bool scattered = fetch && panel == 0 && !one_stretch(v, keys, v_dim * kElementBytes[E]);
  const int near_end = scattered ? keys.end - kFirstRows : 0;
  for (int j = keys.begin; j < keys.end; ++j) {
    QUIRE_UNROLL
    for (int at = 0; at < kBytes; at += 64) __builtin_prefetch(next.at(j) + ahead + at, 0, kFetchLevel);
    if (kFetchNear && j + kNearRows < keys.end) QUIRE_UNROLL
    for (int at = 0; at < kBytes; at += 64) __builtin_prefetch(v.at(j + kNearRows) + ahead + at, 0, kNear);
    if (j < near_end) fetch_row<kNear>(v.at(j + kFirstRows), v_dim * kElementBytes[E]);
    F x[kVectors];
    QUIRE_UNROLL
    for (int s = 0; s < kPanels; ++s) load_panel<E>(v.at(j), panel + s, v_dim, x[2 * s], x[2 * s + 1]);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F weight = set(p[r * kTileKeys + j]);
      QUIRE_UNROLL
      for (int s = 0; s < kVectors; ++s) acc[r][s] = fma(weight, x[s], acc[r][s]);
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) QUIRE_UNROLL
  for (int s = 0; s < kVectors; ++s) store(base + r * acc_stride + s * kLanes, acc[r][s]);
}

template <KvElement E, int kDim, class Rows>
struct ValuesInPlace {
  const TileArgs& a;
  KeyRange keys;
  template <int kRows>
  void run(int row, bool first) const {
    constexpr int kPanels = kPanelsAtOnce[kRows];
    const int panels = ((kDim > 0 ? kDim : a.v_dim) + kPanelWidth - 1) / kPanelWidth;
    int n = 0;
    for (; n + kPanels <= panels; n += kPanels)
      values_block<E, kRows, kPanels, kDim, Rows>(a, row, n, keys, first);
    if constexpr (kDim == 0 || kDim % (kPanels * kPanelWidth) != 0)
      for (; n < panels; ++n) values_block<E, kRows, 1, kDim, Rows>(a, row, n, keys, first);
  }
};

// ---- many rows: tiles are packed to f32 once, lanes hold keys (scores) or dims (values) ----

// k_pack: [panel of kPanelWidth keys][dim in chain order][key of the panel].
template <KvElement E>
inline void pack_keys(const TileArgs& a, KeyRange keys) {
  const int steps = a.qk_dim / 8;
  const int k_bytes = a.qk_dim * kElementBytes[E];
  for (int j = keys.begin; j < keys.end; j += 8) {
    if (a.next_k != nullptr) QUIRE_UNROLL
    for (int n = 0; n < 8; ++n) fetch_row<kFetchLevel>(a.next_k[j + n], k_bytes);
    float* panel = a.k_pack + (j / kPanelWidth) * kPanelWidth * a.qk_dim + j % kPanelWidth;
    for (int t = 0; t < steps; t += 2) {
      F8 x[8], y[8];
      QUIRE_UNROLL
      for (int n = 0; n < 8; ++n) load16<E>(a.k[j + n], t / 2, x[n], y[n]);
      transpose8(x);
      QUIRE_UNROLL
      for (int c = 0; c < 8; ++c) store(panel + (c * steps + t) * kPanelWidth, x[c]);
      transpose8(y);
      QUIRE_UNROLL
      for (int c = 0; c < 8; ++c) store(panel + (c * steps + t + 1) * kPanelWidth, y[c]);
    }
  }
}

// v_pack: [panel of kPanelWidth dims][key][dim of the panel], the last panel padded with zeros.
template <KvElement E>
inline void pack_values(const TileArgs& a, KeyRange keys) {
  const int panels = (a.v_dim + kPanelWidth - 1) / kPanelWidth;
  for (int j = keys.begin; j < keys.end; ++j) {
    if (a.next_k != nullptr) fetch_row<kFetchLevel>(a.next_k[j], a.qk_dim * kElementBytes[E]);
    float* at = a.v_pack + j * kPanelWidth;
    for (int n = 0; n < panels; ++n, at += kPanelWidth * kTileKeys) {
      F x, y;
      load_panel<E>(a.v[j], n, a.v_dim, x, y);
      store(at, x);
      store(at + kLanes, y);
    }
  }
}

inline F tree(const F part[8]) {
  const F low = add(add(part[0], part[2]), add(part[1], part[3]));
  const F high = add(add(part[4], part[6]), add(part[5], part[7]));
  return add(low, high);
}

template <int kRows>
inline void scores_panel(const float* q, int dim, const float* panel, float* scores) {
  const int steps = dim / 8;
  F part[kRows][2][8];
  QUIRE_UNROLL
  for (int c = 0; c < 8; ++c) {
    F acc[kRows][2];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = set(0.0f);
    const float* qc = q + c * steps;
    for (int t = 0; t < steps; ++t, panel += kPanelWidth) {
      const F k0 = load_wide(panel);
      const F k1 = load_wide(panel + kLanes);
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F x = set(qc[r * dim + t]);
        acc[r][0] = fma(x, k0, acc[r][0]);
        acc[r][1] = fma(x, k1, acc[r][1]);
      }
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      part[r][0][c] = acc[r][0];
      part[r][1][c] = acc[r][1];
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    store(scores + r * kTileKeys, tree(part[r][0]));
    store(scores + r * kTileKeys + kLanes, tree(part[r][1]));
  }
}

template <int kRows>
inline void values_panel(const float* p, const float* alpha, const float* panel, KeyRange keys,
                         float* acc_out, int stride) {
  F acc[kRows][2];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const F x = set(alpha[r]);
    acc[r][0] = mul(load_wide(acc_out + r * stride), x);
    acc[r][1] = mul(load_wide(acc_out + r * stride + kLanes), x);
  }
  for (int j = keys.begin; j < keys.end; ++j) {
    const F v0 = load_wide(panel + j * kPanelWidth);
    const F v1 = load_wide(panel + j * kPanelWidth + kLanes);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F x = set(p[r * kTileKeys + j]);
      acc[r][0] = fma(x, v0, acc[r][0]);
      acc[r][1] = fma(x, v1, acc[r][1]);
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    store(acc_out + r * stride, acc[r][0]);
    store(acc_out + r * stride + kLanes, acc[r][1]);
  }
}

template <int kRows>
inline void scores_rows(const TileArgs& a, int row, int first_key) {
  scores_panel<kRows>(a.q_packed + row * a.qk_dim, a.qk_dim, a.k_pack + first_key * a.qk_dim,
                      a.scores + row * kTileKeys + first_key);
}

template <int kRows>
inline void values_rows(const TileArgs& a, int row, int first_dim, KeyRange keys) {
  values_panel<kRows>(a.scores + row * kTileKeys, a.alpha + row, a.v_pack + first_dim * kTileKeys, keys,
                      a.acc + row * a.acc_stride + first_dim, a.acc_stride);
}

// Calls f<rows>(row) for all rows, kMicroRows at a time and then by halves.
template <class F1>
inline void for_row_blocks(int rows, F1 f) {
  int row = 0;
  for (; row + kMicroRows <= rows; row += kMicroRows) f.template run<kMicroRows>(row);
  if constexpr (kMicroRows > 4)
    for (; row + 4 <= rows; row += 4) f.template run<4>(row);
  for (; row + 2 <= rows; row += 2) f.template run<2>(row);
  for (; row < rows; ++row) f.template run<1>(row);
}

struct ScoresBlock {
  const TileArgs& a;
  int first_key;
  template <int kRows>
  void run(int row) const {
    scores_rows<kRows>(a, row, first_key);
  }
};

struct ValuesBlock {
  const TileArgs& a;
  int first_dim;
  KeyRange keys;
  template <int kRows>
  void run(int row) const {
    values_rows<kRows>(a, row, first_dim, keys);
  }
};

// ---- softmax of one tile: scores become weights, the row's maximum and sum move on ----

// Weights of rows [row, row + kRows), some of whose keys are seen. A row's tile stays in registers; keys that
// it does not see weigh 0. Rows go side by side, since each is a chain of dependent steps.
template <int kRows>
inline void softmax_rows(const TileArgs& a, int row) {
  constexpr int kVectors = kTileKeys / kLanes;
  F x[kRows][kVectors], now[kRows], alpha[kRows], sum[kRows];
  // What a score is times this is the power of 2 of its weight. Where nothing else is to be done with scores
  // and their order stays, that includes their scale.
  const bool plain = a.k_scale == nullptr && a.softcap <= 0.0f && a.scale > 0.0f;
  const F power = set(plain ? a.scale * kLog2E : kLog2E);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float* s = a.scores + (row + r) * kTileKeys;
    QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) x[r][n] = load_wide(s + n * kLanes);
    if (!plain) QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) x[r][n] = mul(x[r][n], set(a.scale));
    if (a.k_scale != nullptr) QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) x[r][n] = mul(x[r][n], load_wide(a.k_scale + n * kLanes));
    if (a.softcap > 0.0f) QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) x[r][n] = mul(set(a.softcap), tanh_of(div(x[r][n], set(a.softcap))));
    const std::uint64_t visible = a.visible[row + r];
    if (visible != ~0ull) QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n)
      x[r][n] = select(static_cast<unsigned>(visible >> n * kLanes), x[r][n], set(kNoKey));
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    F top[kVectors];
    QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) top[n] = x[r][n];
    QUIRE_UNROLL
    for (int half = kVectors / 2; half > 0; half /= 2) QUIRE_UNROLL
    for (int n = 0; n < half; ++n) top[n] = max(top[n], top[n + half]);
    // A visible key makes the maximum finite, so that NaN scores give NaN and not an empty row.
    const F old = set(a.max[row + r]);
    now[r] = max(max(mul(max_of_lanes(top[0]), power), set(kLowest)), old);
    alpha[r] = exp2_nonpositive(sub(old, now[r]));
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    F part[kVectors];
    const F minus = sub(set(0.0f), now[r]);
    QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) part[n] = x[r][n] = exp2_nonpositive(fma(x[r][n], power, minus));
    QUIRE_UNROLL
    for (int half = kVectors / 2; half > 0; half /= 2) QUIRE_UNROLL
    for (int n = 0; n < half; ++n) part[n] = add(part[n], part[n + half]);
    sum[r] = part[0];
    float* s = a.scores + (row + r) * kTileKeys;
    if (a.v_scale != nullptr) QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) x[r][n] = mul(x[r][n], load_wide(a.v_scale + n * kLanes));
    QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) store(s + n * kLanes, x[r][n]);
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float factor = first_lane(alpha[r]);
    a.max[row + r] = first_lane(now[r]);
    a.alpha[row + r] = factor;
    a.sum[row + r] = a.sum[row + r] * factor + sum_of_lanes(sum[r]);
  }
}

// Rows [row, row + kRows), if that many go side by side, exist and see a key.
template <int kRows>
inline bool softmax_abreast(const TileArgs& a, int row) {
  if constexpr (kRows <= kSoftmaxRows) {
    if (row + kRows > a.rows) return false;
    for (int r = 0; r < kRows; ++r)
      if (a.visible[row + r] == 0) return false;
    softmax_rows<kRows>(a, row);
    return true;
  }
  return false;
}

inline void softmax(const TileArgs& a) {
  for (int row = 0; row < a.rows;) {
    if (softmax_abreast<4>(a, row)) {
      row += 4;
    } else if (softmax_abreast<2>(a, row)) {
      row += 2;
    } else if (!softmax_abreast<1>(a, row++)) {
      float* s = a.scores + (row - 1) * kTileKeys;
      for (int j = 0; j < kTileKeys; j += kLanes) store(s + j, set(0.0f));
      a.alpha[row - 1] = 1.0f;
    }
  }
}

// The first rows of what comes next go into the first level before the rest of it.
template <class Rows>
[[gnu::always_inline]] inline void fetch_first(Rows rows, int first, int bytes) {
  if (kFetchNear)
    for (int n = 0; n < kFirstRows; ++n) fetch_row<kNear>(rows.at(first + n), bytes);
}

template <KvElement E, int kDim, class Rows>
inline void tile_in_place(const TileArgs& a, KeyRange keys) {
  for_few_rows(a.rows, ScoresInPlace<E, kDim, Rows>{a, keys});
  fetch_first(Rows{a.v}, keys.begin, a.v_dim * kElementBytes[E]);
  softmax(a);
  for_few_rows(a.rows, ValuesInPlace<E, kDim, Rows>{a, keys});
  if (a.next_k != nullptr) fetch_first(Rows{a.next_k}, 0, a.qk_dim * kElementBytes[E]);
}

template <KvElement E, int kDim>
inline void tile_of_dim(const TileArgs& a, KeyRange keys) {
  if (a.stretch) return tile_in_place<E, kDim, Stretch<kDim * kElementBytes[E]>>(a, {0, kTileKeys});
  tile_in_place<E, kDim, Listed>(a, keys);
}

template <KvElement E>
void tile(const TileArgs& args) {
  const KeyRange keys = visible_range(args.any, args.packed ? kPanelWidth : kKeyBlock);
  if constexpr (kKnownDims) {
    if (!args.packed && args.qk_dim == 128 && args.v_dim == 128) return tile_of_dim<E, 128>(args, keys);
    if (!args.packed && args.qk_dim == 64 && args.v_dim == 64) return tile_of_dim<E, 64>(args, keys);
  }
  // A copy, so that the compiler may keep its fields: loops over dims that are not known are faster with it,
  // those above without (docs/PERFORMANCE.md).
  const TileArgs a = args;
  if (!a.packed) return tile_in_place<E, 0, Listed>(a, keys);
  if (a.fresh)
    for (int i = 0; i < a.rows * a.acc_stride; i += kLanes) store(a.acc + i, set(0.0f));
  pack_keys<E>(a, keys);
  for (int j = keys.begin / kPanelWidth * kPanelWidth; j < keys.end; j += kPanelWidth)
    for_row_blocks(a.rows, ScoresBlock{a, j});
  softmax(a);
  pack_values<E>(a, keys);
  for (int d = 0; d < a.v_dim; d += kPanelWidth) for_row_blocks(a.rows, ValuesBlock{a, d, keys});
}

template <KvElement E>
void q_by_lane(const float* q, int dim, float* to) {
  for (int t = 0; t < dim / 8; ++t)
    for (int c = 0; c < 8; ++c) to[8 * t + c] = q[dim_of<E>(t, c)];
}

template <KvElement E>
void q_by_chain(const float* q, int dim, float* to) {
  const int steps = dim / 8;
  for (int t = 0; t < steps; ++t)
    for (int c = 0; c < 8; ++c) to[c * steps + t] = q[dim_of<E>(t, c)];
}

void place_rows(const void** to, const char* row, std::int64_t stride, int count) {
  for (int j = 0; j < count; ++j) to[j] = row + j * stride;
}

// acc <- acc x + part y
inline void scale_and_add(float* acc, float x, const float* part, float y, int dim) {
  const F xs = set(x);
  const F ys = set(y);
  for (int i = 0; i < dim; i += kLanes)
    store(acc + i, fma(load_wide(part + i), ys, mul(load_wide(acc + i), xs)));
}

void fold(int rows, int dim, float* max_io, float* sum_io, float* acc, const float* part_max,
          const float* part_sum, const float* const* part_acc) {
  // The factors of all rows at once: each is a chain of dependent steps.
  alignas(64) float keep[kMaxRows], take[kMaxRows];
  static_assert(kMaxRows % kLanes == 0);
  for (int m = 0; m < rows; m += kLanes) {
    const F old = load_wide(max_io + m);
    const F part = load_wide(part_max + m);
    const F top = max(old, part);
    store(keep + m, exp2_nonpositive(sub(old, top)));
    store(take + m, exp2_nonpositive(sub(part, top)));
  }
  for (int m = 0; m < rows; ++m, acc += dim) {
    if (part_max[m] == kNoKey) continue;
    if (max_io[m] == kNoKey) {
      max_io[m] = part_max[m];
      sum_io[m] = part_sum[m];
      for (int i = 0; i < dim; i += kLanes) store(acc + i, load_wide(part_acc[m] + i));
      continue;
    }
    max_io[m] = max_io[m] > part_max[m] ? max_io[m] : part_max[m];
    sum_io[m] = sum_io[m] * keep[m] + part_sum[m] * take[m];
    scale_and_add(acc, keep[m], part_acc[m], take[m], dim);
  }
}

template <KvElement E>
void write(float* out, const float* acc, float factor, int dim) {
  for (int d = 0; d < dim; ++d) out[d] = acc[place_of<E>(d)] * factor;
}

bool takes_stretch(int qk_dim, int v_dim) {
  return kKnownDims && qk_dim == v_dim && (qk_dim == 64 || qk_dim == 128);
}

constexpr Kernels kTable{{tile<kF32>, tile<kBf16>, tile<kF16>, tile<kFp8>},
                         {q_by_lane<kF32>, q_by_lane<kBf16>, q_by_lane<kF16>, q_by_lane<kFp8>},
                         {q_by_chain<kF32>, q_by_chain<kBf16>, q_by_chain<kF16>, q_by_chain<kFp8>},
                         {write<kF32>, write<kBf16>, write<kF16>, write<kFp8>},
                         takes_stretch,
                         {1.0f, 1.0f, 1.0f, kFp8Unit},
                         place_rows,
                         fold};
