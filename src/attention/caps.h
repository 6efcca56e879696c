// Capability as data. A row of the table is {name, description, caps, make}; caps are boxes: products of
// sets and ranges. supports() below is the one reading of them: some box contains the problem, or the
// reason is the smallest clash. The table, `quire backends`, verify's sweeps, the docs and every refusal
// derive from it, and a row cannot override it. Box is C-compatible and starts with its size, as the types of
// contract.h do; Caps and Backend name C++ types and are compiled with the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/contract.h"

namespace quire::attention {

// A set of up to 16 values, given in place; an empty set means "any".
struct IntSet {
  std::int32_t values[16] = {};
  std::int32_t count = 0;
  constexpr IntSet() = default;
  template <class... T>
  constexpr explicit IntSet(T... v) : values{static_cast<std::int32_t>(v)...}, count(sizeof...(v)) {}
  constexpr bool contains(std::int32_t v) const {
    if (count == 0) return true;
    for (std::int32_t i = 0; i < count; ++i)
      if (values[i] == v) return true;
    return false;
  }
};

struct DimPair {
  std::int32_t qk = 0;
  std::int32_t v = 0;
};
struct DimSet {
  DimPair values[24] = {};
  std::int32_t count = 0;  // 0: any
};

struct PageRule {
  enum class Kind : std::uint8_t { any, set, multiple } kind = Kind::any;
  std::int32_t min = 1;
  std::int32_t max = 256;
  std::int32_t multiple = 1;
  IntSet values;
};

template <class E>
constexpr std::uint32_t bit(E e) {
  return 1u << static_cast<std::uint32_t>(e);
}

// A KV format a box takes: the element types of K and V and the scale kinds, as bit sets.
struct KvFormatSet {
  std::uint32_t types = 0;   // bit(DType)
  std::uint32_t scales = 0;  // bit(KvScaleKind)
  std::uint32_t packings = bit(KvPacking::plain);
  bool mixed = false;  // K and V may differ in type
};

struct Box {
  std::uint32_t size = sizeof(Box);
  std::uint32_t platforms = 0;  // bit(platform::Kind); 0: any
  std::int32_t arch_min = 0;
  std::int32_t arch_max = 1 << 30;
  std::uint32_t phases = 0;  // bit(Phase)
  DimSet dims;
  std::int32_t ratio_min = 1;  // q_heads / kv_heads
  std::int32_t ratio_max = 1 << 20;
  std::uint32_t q_types = 0;  // bit(DType)
  KvFormatSet kv;
  PageRule page;
  std::uint32_t orders = 0;    // bit(PageOrder)
  std::uint32_t sources = 0;   // bit(KvSource)
  std::uint32_t masks = 0;     // bit(MaskKind)
  std::uint32_t features = 0;  // Feature set it can do
  std::uint32_t needs = 0;     // of these, what a call must have
};

enum class Capture : std::uint8_t { no, fixed_shapes, any };
enum class HostLengths : std::uint8_t { no, bound_only, yes };

struct Caps {
  std::uint32_t size = sizeof(Caps);
  std::span<const Box> boxes;
  Capture capture = Capture::any;
  HostLengths host_lengths = HostLengths::no;
  Determinism determinism = Determinism::none;
  std::int32_t longest_query = 1;   // of the verify phase
  std::int32_t padded_row_len = 0;  // kv_len to give padded rows of a bucket
  bool workspace_zeroed_once = false;
  std::int32_t recommended_page = 0;     // measured; 0: no preference
  std::string_view recommended_because;  // "64 and above within 2 % on ..., 2026-11-30"
};

// Facts that can clash; a closed list, ids are stable (JSON `facts`).
enum class Fact : std::uint8_t {
  platform,
  arch,
  phase,
  head_dims,
  head_ratio,
  q_type,
  kv_format,
  kv_scale,
  kv_packing,
  page_size,
  page_order,
  source,
  mask,
  softcap,
  sink,
  lse,
  tree,
  part,
  sparse,
  latent,
  determinism,
  device,
  pinned,
};
std::string_view to_string(Fact fact);

// Why a row cannot serve a problem: two facts (the call's and the row's), in words, and the nearest legal
// change.
struct Reason {
  Fact facts[2] = {Fact::platform, Fact::platform};
  std::string text;  // "cpu takes head dims 16, 32, ...; this call has 48/48"
  std::string fix;   // "use --attention-backend reference"
};

struct Backend {
  std::string_view name;
  std::string_view description;
  Caps caps;
  // Binds to one problem that supports() accepted. Does all slow work (plans, compilation) here.
  std::unique_ptr<Attention> (*make)(const Problem& problem, platform::Device& device);
};

// nullopt: the row can serve it. Else the smallest clash: one fact that no box takes (both facts of the
// Reason name it), or two that no box takes together (facts[0] is the one to change first).
std::optional<Reason> supports(const Backend& row, const Problem& problem);

inline constexpr std::int32_t kMaxPageSize = 256;
// Page sizes that some box of the row takes (of those boxes that take `given` of the problem, if given),
// the nearest to problem.page_size above and below it, nearest first; empty: none at all.
std::vector<std::int32_t> nearest_page_sizes(const Backend& row, const Problem& problem,
                                             std::optional<Fact> given = std::nullopt);

// The table of this build for a platform, in order of priority; reference is last; empty: the platform is
// not in this build. table.cc is the list.
std::span<const Backend> backends(platform::Kind platform);
const Backend* find_backend(std::span<const Backend> table, std::string_view name);

}  // namespace quire::attention
