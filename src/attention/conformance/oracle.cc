#include "attention/conformance/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/conformance/values.h"

namespace quire::conformance {
namespace {

// The keys and values of a sequence as numbers, scales applied.
template <class Real>
struct Numbers {
  std::vector<Real> k;  // [kv_len, kv_heads, qk_dim]
  std::vector<Real> v;
};

float scale_of(const Logical& l, const std::vector<float>& call, const std::vector<float>& own, int key,
               int head) {
  switch (l.problem.kv.scale) {
    case KvScaleKind::tensor:
      return call[0];
    case KvScaleKind::layer_head:
      return call[static_cast<std::size_t>(head)];
    case KvScaleKind::token_head:
      return own[static_cast<std::size_t>(key * l.problem.kv_heads + head)];
    default:
      return 1.0f;
  }
}

template <class Real>
Numbers<Real> numbers_of(const Logical& l, const Sequence& s) {
  const attention::Problem& p = l.problem;
  Numbers<Real> n;
  const bool latent = l.has(attention::kLatent);
  const std::size_t k_bytes = dtype_bytes(p.kv.k_type);
  const std::size_t v_bytes = dtype_bytes(p.kv.v_type);
  for (int key = 0; key < s.kv_len; ++key)
    for (int head = 0; head < p.kv_heads; ++head) {
      const auto entry = static_cast<std::size_t>(key * p.kv_heads + head);
      const auto k_scale = static_cast<Real>(scale_of(l, l.k_scale, s.k_scale, key, head));
      const auto v_scale = static_cast<Real>(scale_of(l, l.v_scale, s.v_scale, key, head));
      const std::uint8_t* k = s.k.data() + entry * static_cast<std::size_t>(p.qk_dim) * k_bytes;
      const std::uint8_t* v = latent ? k : s.v.data() + entry * static_cast<std::size_t>(p.v_dim) * v_bytes;
      for (int d = 0; d < p.qk_dim; ++d)
        n.k.push_back(static_cast<Real>(load_value(p.kv.k_type, k + static_cast<std::size_t>(d) * k_bytes)) *
                      k_scale);
      for (int d = 0; d < p.v_dim; ++d)
        n.v.push_back(static_cast<Real>(load_value(p.kv.v_type, v + static_cast<std::size_t>(d) * v_bytes)) *
                      v_scale);
    }
  return n;
}

template <class Real>
class Plain {
 public:
  Plain(const Logical& l, Expected& expected, bool rounds)
      : l_(l), p_(l.problem), expected_(expected), rounds_(rounds) {}

  void sequence(const Sequence& s) {
    const Numbers<Real> numbers = numbers_of<Real>(l_, s);
    for (Real v : numbers.v)
      expected_.value_max = std::max(expected_.value_max, std::fabs(static_cast<double>(v)));
    for (int row = 0; row < s.q_len; ++row) {
      std::vector<char> shown(static_cast<std::size_t>(s.kv_len));
      for (int key = 0; key < s.kv_len; ++key) shown[static_cast<std::size_t>(key)] = l_.visible(s, row, key);
      for (int head = 0; head < p_.q_heads; ++head) one(s, numbers, row, head, keys_of(s, shown, row, head));
    }
  }

 private:
  std::vector<int> keys_of(const Sequence& s, const std::vector<char>& shown, int row, int head) const {
    std::vector<int> keys;
    if (s.sparse.empty()) {
      for (int key = 0; key < s.kv_len; ++key)
        if (shown[static_cast<std::size_t>(key)]) keys.push_back(key);
      return keys;
    }
    const int index_head = head / (p_.q_heads / l_.index_heads);
    for (int i = 0; i < l_.sparse_k; ++i) {
      const int key =
          s.sparse[static_cast<std::size_t>((row * l_.index_heads + index_head) * l_.sparse_k + i)];
      if (key >= 0 && shown[static_cast<std::size_t>(key)]) keys.push_back(key);
    }
    return keys;
  }

  void one(const Sequence& s, const Numbers<Real>& n, int row, int head, const std::vector<int>& keys) {
    const int kv_head = head * p_.kv_heads / p_.q_heads;
    const float* q = s.q.data() + static_cast<std::size_t>((row * p_.q_heads + head) * p_.qk_dim);
    std::vector<Real> scores;
    Real most = -std::numeric_limits<Real>::infinity();
    for (int key : keys) {
      const Real* k = n.k.data() + static_cast<std::size_t>((key * p_.kv_heads + kv_head) * p_.qk_dim);
      Real dot = 0;
      for (int d = 0; d < p_.qk_dim; ++d) dot += static_cast<Real>(q[d]) * k[d];
      Real score = dot * static_cast<Real>(l_.scale) * static_cast<Real>(l_.q_descale);
      expected_.score_max = std::max(expected_.score_max, std::fabs(static_cast<double>(score)));
      if (l_.softcap > 0)
        score = static_cast<Real>(l_.softcap) * std::tanh(score / static_cast<Real>(l_.softcap));
      scores.push_back(score);
      most = std::max(most, score);
    }
    std::vector<Real> sums(static_cast<std::size_t>(p_.v_dim));
    Real total = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Real weight = std::exp(scores[i] - most);
      const Real* v = n.v.data() + static_cast<std::size_t>((keys[i] * p_.kv_heads + kv_head) * p_.v_dim);
      total += weight;
      const Real stored = to_stored(weight);
      for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += stored * v[d];
    }
    const Real sink = l_.sink.empty() || keys.empty()
                          ? Real{0}
                          : std::exp(static_cast<Real>(l_.sink[static_cast<std::size_t>(head)]) - most);
    for (Real sum : sums)
      expected_.out.push_back(keys.empty() ? 0.0 : static_cast<double>(to_stored(sum / (total + sink))));
    expected_.lse.push_back(keys.empty() ? -std::numeric_limits<double>::infinity()
                                         : static_cast<double>(most + std::log(total)));
  }

  Real to_stored(Real x) const {
    return rounds_ ? static_cast<Real>(rounded(p_.q_type, static_cast<float>(x))) : x;
  }

  const Logical& l_;
  const attention::Problem& p_;
  Expected& expected_;
  bool rounds_;
};

template <class Real>
Expected plain(const Logical& l, bool rounds = false) {
  Expected expected;
  Plain<Real> maths(l, expected, rounds);
  for (const Sequence& s : l.sequences) maths.sequence(s);
  return expected;
}

}  // namespace

Expected plain_double(const Logical& l) { return plain<double>(l); }
Expected plain_float(const Logical& l) { return plain<float>(l); }
Expected plain_rounded(const Logical& l) { return plain<float>(l, true); }

}  // namespace quire::conformance
