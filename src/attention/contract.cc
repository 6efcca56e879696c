#include "attention/contract.h"

#include <cstddef>
#include <type_traits>

#include "base/check.h"

namespace quire::attention {
namespace {

template <class T>
constexpr bool kPlain = std::is_standard_layout_v<T>&& std::is_trivially_copyable_v<T>;
template <class T>
constexpr bool kSized = kPlain<T>&& std::is_same_v<decltype(T::size), std::uint32_t>&& offsetof(T, size) == 0;
template <class T, std::size_t kBytes>
constexpr bool kFrozen = kPlain<T> && sizeof(T) == kBytes;

static_assert(kSized<Problem> && kSized<StepShape> && kSized<SparseIndex> && kSized<Args> && kSized<Limits>);
static_assert(kSized<KvFormat> && kSized<KvView>);
static_assert(kFrozen<PrefixGroup, 12> && kFrozen<PlanBuffer, 16> && kFrozen<KvStrides, 32> &&
              kFrozen<KvSection, 4>);

}  // namespace

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::decode:
      return "decode";
    case Phase::verify:
      return "verify";
    case Phase::extend:
      return "extend";
  }
  return "unknown";
}

std::string_view to_string(MaskKind kind) {
  switch (kind) {
    case MaskKind::causal:
      return "causal";
    case MaskKind::window:
      return "window";
    case MaskKind::chunked:
      return "chunked";
    case MaskKind::full:
      return "full";
    case MaskKind::rows:
      return "rows";
  }
  return "unknown";
}

std::string_view to_string(KvSource source) { return source == KvSource::paged ? "paged" : "dense"; }

std::string_view to_string(Determinism level) {
  switch (level) {
    case Determinism::none:
      return "none";
    case Determinism::run_to_run:
      return "run_to_run";
    case Determinism::batch_invariant:
      return "batch_invariant";
    case Determinism::schedule_invariant:
      return "schedule_invariant";
  }
  return "unknown";
}

std::string features_to_string(std::uint32_t features) {
  static constexpr std::string_view kNames[] = {"softcap", "sink", "lse", "tree", "part", "sparse", "latent"};
  std::string text;
  for (std::uint32_t i = 0; i < std::size(kNames); ++i) {
    if ((features & (1u << i)) == 0) continue;
    if (!text.empty()) text += ", ";
    text += kNames[i];
  }
  return text.empty() ? "none" : text;
}

Phase phase_of(int q_len, bool has_tree, int longest_verify) {
  QUIRE_CHECK(q_len >= 0, "q_len={}", q_len);
  if (has_tree) return Phase::verify;
  if (q_len <= 1) return Phase::decode;
  return q_len <= longest_verify ? Phase::verify : Phase::extend;
}

}  // namespace quire::attention
