// Body of loops_*.cc, inside an anonymous namespace, after V (a float vector type), W (an integer vector
// of the same size) and kRows.

constexpr int kLanes = sizeof(V) / sizeof(float);
static_assert(kDepth * (2 * kLanes + kRows) <= kPanelFloats);

std::uint64_t read_all(const void* data, std::int64_t bytes) {
  const char* at = static_cast<const char*>(data);
  const char* end = at + bytes;
  W a{}, b{}, c{}, d{};
  for (; at < end; at += 4 * sizeof(W)) {
    const W* x = reinterpret_cast<const W*>(at);
    a ^= x[0];
    b ^= x[1];
    c ^= x[2];
    d ^= x[3];
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}

double multiply(float* panels, std::int64_t repeats) {
  float* left = panels + kDepth * 2 * kLanes;
  double flops = 0;
  for (std::int64_t n = 0; n < repeats; ++n) {
    V acc[kRows][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = V{};
    for (int t = 0; t < kDepth; ++t) {
      const V x = *reinterpret_cast<const V*>(panels + t * 2 * kLanes);
      const V y = *reinterpret_cast<const V*>(panels + t * 2 * kLanes + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float s = left[t * kRows + r];
        acc[r][0] += x * s;
        acc[r][1] += y * s;
      }
    }
    // One value goes back in, so that no pass can be left out.
    V sum = acc[0][0] + acc[0][1];
#pragma GCC unroll 16
    for (int r = 1; r < kRows; ++r) sum += acc[r][0] + acc[r][1];
    panels[0] = sum[0] * 1e-6f;
    flops += 2.0 * kDepth * kRows * 2 * kLanes;
  }
  return flops;
}

constexpr Loops kTable{read_all, multiply};
