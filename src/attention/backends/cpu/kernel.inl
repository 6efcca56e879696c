// Body of kernel_*.cc, included once in each, inside an anonymous namespace and after the vector types of
// that instruction set:
//   F8    8 lanes: load, store, zero, fma, add, mul; transpose8 over 8 of them
//   F     kLanes lanes: the same and set, sub, max, div, select by mask bits, ...
//   load16<KvElement>(row, u, &a, &b): dims [16u, 16u + 16) of a cache row, in lane order (dim_of)
//   load_keys<KvElement>(keys, u, &a, &b): the same of kKeysOfVector keys, 8 lanes each, kKeyStep apart
//   load_panel<KvElement>(row, n, dims, &a, &b): dims [n * kPanelWidth, dims) of a cache row, as many as two
//     vectors hold and zeros past the last; lanes as place_of says
//   store_scores: sums the chains of a block of keys and stores the scores
// No std:: here: an inline function of the library compiled with these flags must not become the
// program's only copy.

constexpr float kLowest = -3.4e38f;
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

// e^x for x <= 0; below -87 it is 0.
inline F exp_nonpositive(F x) {
  const F magic = set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F shifted = fma(x, set(1.44269504088896f), magic);
  const F n = sub(shifted, magic);
  F r = fma(n, set(-0.693359375f), x);
  r = fma(n, set(2.12194440e-4f), r);
  F p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = fma(mul(p, r), r, add(r, set(1.0f)));
  return zero_where_below(add_exponent(p, shifted), x, -87.0f);
}

inline F tanh_of(F x) {
  const F a = max(x, sub(set(0.0f), x));
  const F e = exp_nonpositive(mul(a, set(-2.0f)));
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

// Inlined by force: a call to a function that only prefetches has no effect in the eyes of GCC 12, which
// leaves it out.
template <int kLevel>
[[gnu::always_inline]] inline void fetch_row(const void* row, int bytes) {
  for (int at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(row) + at, 0, kLevel);
}

// Cache rows to be fetched while something else is computed, a few lines at a time: in bursts they would fill
// the miss buffers, stall the loads of what is in hand and leave memory idle afterwards.
struct Fetch {
  const void* const* rows;
  const void* const* near_rows;  // kFetchNear: are in the second level, go into the first
  int count;                     // of either; 0: nothing to fetch
  int bytes;                     // of a row
};

// Dims [16 u, 16 u + 16) of the chains.
template <KvElement E, int kRows, int kVectors>
inline void chain_step(const float* const* q, const void* const* k, int u, F (&acc)[kRows][kVectors]) {
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
      load_keys<E>(k + key_of_vector(n), u, a, b);
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (kPasses == 1 || pass == 0) acc[r][n] = fma(qa[r], a, acc[r][n]);
        if (kPasses == 1 || pass == 1) acc[r][n] = fma(qb[r], b, acc[r][n]);
      }
    }
  }
}

// kDim > 0: the dim is known, and the rows of q lie one behind the other.
template <KvElement E, int kRows, int kVectors, int kDim>
inline void chains_of(const float* const* q, const void* const* k, int dim, Fetch fetch,
                      F (&acc)[kRows][kVectors]) {
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) QUIRE_UNROLL
  for (int n = 0; n < kVectors; ++n) acc[r][n] = zero();
  if constexpr (kDim > 0) {
    constexpr int kSteps = kDim / 16;
    constexpr int kKeys = kVectors * kKeysOfVector;
    const float* rows[kRows];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) rows[r] = q[0] + r * kDim;
    QUIRE_UNROLL
    for (int u = 0; u < kSteps; ++u) {
      if (fetch.count > 0) QUIRE_UNROLL
      for (int n = u * kKeys / kSteps; n < (u + 1) * kKeys / kSteps; ++n) {
        fetch_row<kFetchLevel>(fetch.rows[n], kDim * kElementBytes[E]);
        if (kFetchNear) fetch_row<kNear>(fetch.near_rows[n], kDim * kElementBytes[E]);
      }
      chain_step<E>(rows, k, u, acc);
    }
  } else {
    const int steps = dim / 16;
    for (int u = 0, due = 0, fetched = 0; u < steps; ++u) {
      for (due += fetch.count; due >= steps; due -= steps)
        fetch_row<kFetchLevel>(fetch.rows[fetched++], fetch.bytes);
      chain_step<E>(q, k, u, acc);
    }
  }
}

// The values of the same keys are fetched meanwhile: they are next.
template <KvElement E, int kRows, int kDim>
inline void scores_in_place_rows(const TileArgs& a, int row, KeyRange keys, bool fetch) {
  constexpr int kVectors = kVectorsAtOnce[kRows];
  constexpr int kKeys = kVectors * kKeysOfVector;
  for (int j = keys.begin; j < keys.end; j += kKeys) {
    F acc[kRows][kVectors];
    const void* const* following = j + kKeys < keys.end ? a.k + j + kKeys : a.k + j;
    const Fetch ahead{a.v + j, following, fetch ? kKeys : 0, a.v_dim * kElementBytes[E]};
    chains_of<E, kRows, kVectors, kDim>(a.q_lanes + row, a.k + j, a.qk_dim, ahead, acc);
    store_scores(acc, j, a.chains, a.scores + row * kTileKeys + j);
  }
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

template <KvElement E, int kDim>
struct ScoresInPlace {
  const TileArgs& a;
  KeyRange keys;
  template <int kRows>
  void run(int row, bool first) const {
    scores_in_place_rows<E, kRows, kDim>(a, row, keys, first);
  }
};

inline bool one_stretch(const void* const* rows, KeyRange keys, int bytes) {
  const int last = keys.end - 1;
  return static_cast<const char*>(rows[last]) - static_cast<const char*>(rows[keys.begin]) ==
         std::int64_t{bytes} * (last - keys.begin);
}

// Panels [panel, panel + kPanels) of the sums. Of the next tile's keys the same bytes are fetched.
template <KvElement E, int kRows, int kPanels, int kDim>
inline void values_block(const TileArgs& a, int row, int panel, KeyRange keys, bool fetch) {
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
    for (int s = 0; s < kVectors; ++s) acc[r][s] = mul(load_wide(base + r * acc_stride + s * kLanes), alpha);
  }
  const void* const* next = fetch && a.next_k != nullptr ? a.next_k : a.v;
  const int ahead = panel * kPanelWidth * kElementBytes[E];
  // Rows of several pages go into the first level whole, with the first panel: the others find them there.
  const bool scattered = fetch && panel == 0 && !one_stretch(a.v, keys, v_dim * kElementBytes[E]);
  const int near_end = scattered ? keys.end - kFirstRows : 0;
  for (int j = keys.begin; j < keys.end; ++j) {
    QUIRE_UNROLL
    for (int at = 0; at < kBytes; at += 64)
      __builtin_prefetch(static_cast<const char*>(next[j]) + ahead + at, 0, kFetchLevel);
    if (j < near_end) fetch_row<kNear>(a.v[j + kFirstRows], v_dim * kElementBytes[E]);
    F v[kVectors];
    QUIRE_UNROLL
    for (int s = 0; s < kPanels; ++s) load_panel<E>(a.v[j], panel + s, v_dim, v[2 * s], v[2 * s + 1]);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F weight = set(p[r * kTileKeys + j]);
      QUIRE_UNROLL
      for (int s = 0; s < kVectors; ++s) acc[r][s] = fma(weight, v[s], acc[r][s]);
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) QUIRE_UNROLL
  for (int s = 0; s < kVectors; ++s) store(base + r * acc_stride + s * kLanes, acc[r][s]);
}

template <KvElement E, int kDim>
struct ValuesInPlace {
  const TileArgs& a;
  KeyRange keys;
  template <int kRows>
  void run(int row, bool first) const {
    constexpr int kPanels = kPanelsAtOnce[kRows];
    const int panels = ((kDim > 0 ? kDim : a.v_dim) + kPanelWidth - 1) / kPanelWidth;
    int n = 0;
    for (; n + kPanels <= panels; n += kPanels) values_block<E, kRows, kPanels, kDim>(a, row, n, keys, first);
    if constexpr (kDim == 0 || kDim % (kPanels * kPanelWidth) != 0)
      for (; n < panels; ++n) values_block<E, kRows, 1, kDim>(a, row, n, keys, first);
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
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float* s = a.scores + (row + r) * kTileKeys;
    QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) x[r][n] = mul(load_wide(s + n * kLanes), set(a.scale));
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
    now[r] = max(max(max_of_lanes(top[0]), set(kLowest)), old);
    alpha[r] = exp_nonpositive(sub(old, now[r]));
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    F part[kVectors];
    QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) part[n] = x[r][n] = exp_nonpositive(sub(x[r][n], now[r]));
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
[[gnu::always_inline]] inline void fetch_first(const void* const* rows, int bytes) {
  if (!kFetchNear || rows == nullptr) return;
  for (int n = 0; n < kFirstRows; ++n) fetch_row<kNear>(rows[n], bytes);
}

template <KvElement E, int kDim>
inline void tile_in_place(const TileArgs& a, KeyRange keys) {
  for_few_rows(a.rows, ScoresInPlace<E, kDim>{a, keys});
  fetch_first(a.v + keys.begin, a.v_dim * kElementBytes[E]);
  softmax(a);
  for_few_rows(a.rows, ValuesInPlace<E, kDim>{a, keys});
  fetch_first(a.next_k, a.qk_dim * kElementBytes[E]);
}

template <KvElement E>
void tile(const TileArgs& args) {
  const KeyRange keys = visible_range(args.any, args.packed ? kPanelWidth : kKeyBlock);
  if constexpr (kKnownDims) {
    if (!args.packed && args.qk_dim == 128 && args.v_dim == 128) return tile_in_place<E, 128>(args, keys);
    if (!args.packed && args.qk_dim == 64 && args.v_dim == 64) return tile_in_place<E, 64>(args, keys);
  }
  // A copy, so that the compiler may keep its fields: loops over dims that are not known are faster with it,
  // those above without (docs/PERFORMANCE.md).
  const TileArgs a = args;
  if (!a.packed) return tile_in_place<E, 0>(a, keys);
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

void fold(float* max_io, float* sum_io, float* acc, float part_max, float part_sum, const float* part_acc,
          int dim) {
  if (part_max == kNoKey) return;
  if (*max_io == kNoKey) {
    *max_io = part_max;
    *sum_io = part_sum;
    for (int i = 0; i < dim; i += 8) store(acc + i, load(part_acc + i));
    return;
  }
  const float top = *max_io > part_max ? *max_io : part_max;
  const float old_weight = first_lane(exp_nonpositive(set(*max_io - top)));
  const float part_weight = first_lane(exp_nonpositive(set(part_max - top)));
  *max_io = top;
  *sum_io = *sum_io * old_weight + part_sum * part_weight;
  const F8 x = set8(old_weight);
  const F8 y = set8(part_weight);
  for (int i = 0; i < dim; i += 8) store(acc + i, fma(load(part_acc + i), y, mul(load(acc + i), x)));
}

template <KvElement E>
void write(float* out, const float* acc, float factor, int dim) {
  for (int d = 0; d < dim; ++d) out[d] = acc[place_of<E>(d)] * factor;
}

constexpr Kernels kTable{{tile<kF32>, tile<kBf16>, tile<kF16>, tile<kFp8>},
                         {q_by_lane<kF32>, q_by_lane<kBf16>, q_by_lane<kF16>, q_by_lane<kFp8>},
                         {q_by_chain<kF32>, q_by_chain<kBf16>, q_by_chain<kF16>, q_by_chain<kFp8>},
                         {write<kF32>, write<kBf16>, write<kF16>, write<kFp8>},
                         {1.0f, 1.0f, 1.0f, kFp8Unit},
                         place_rows,
                         fold};
