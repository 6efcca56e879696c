// Cache: the KV pages of a record as the call in hand saw them. Frames are applied in order; pages get small
// indices of their own, so a record of a large arena needs the memory of what was used.
// Slots that no frame has filled hold NaN: whoever reads them shows it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "record/frames.h"
#include "tensor/kv_format.h"

namespace quire::record {

// Host memory whose rows are aligned as an engine's arena is.
class Plane {
 public:
  void append(std::size_t bytes, std::uint8_t fill);
  std::uint8_t* data() { return lines_.empty() ? nullptr : lines_[0].data(); }
  const std::uint8_t* data() const { return lines_.empty() ? nullptr : lines_[0].data(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct alignas(64) Line : std::array<std::uint8_t, 64> {};
  std::vector<Line> lines_;
  std::size_t bytes_ = 0;
};

class LayerCache {
 public:
  explicit LayerCache(const attention::Problem& problem);
  // Whether calls of the problem read rows of this shape.
  bool fits(const attention::Problem& problem) const;
  void apply(const KvRows& rows);

  // Index of a page in the planes; pages that the record does not hold share one that holds NaN.
  std::uint32_t index_of(std::uint32_t page) const;
  const Plane& k() const { return k_; }
  const Plane& v() const { return latent_ ? k_ : v_; }
  const Plane& k_scale() const { return k_scale_; }
  const Plane& v_scale() const { return v_scale_; }
  // Strides over the planes; the pointers are the caller's to set.
  KvView view() const;
  std::int64_t page_bytes() const;
  std::int64_t bytes() const;

 private:
  void add_page(std::uint8_t fill);

  attention::Problem problem_;
  bool latent_ = false;
  std::unordered_map<std::uint32_t, std::uint32_t> index_;
  std::uint32_t pages_ = 0;
  Plane k_, v_, k_scale_, v_scale_;
};

class Cache {
 public:
  // most_bytes: over all layers; a record that needs more is refused.
  explicit Cache(std::int64_t most_bytes) : most_bytes_(most_bytes) {}
  // Takes in what the frame brings. Dense calls bring their own keys and have no layer here.
  Status apply(const CallFrame& frame, const RecordedCall& call);
  // REQUIRES an applied frame of a paged call.
  const LayerCache& of(const CallFrame& frame, const RecordedCall& call) const;

 private:
  std::int64_t most_bytes_;
  std::int64_t bytes_ = 0;
  std::map<std::pair<std::int32_t, std::int32_t>, LayerCache> layers_;  // by group and layer
};

}  // namespace quire::record
