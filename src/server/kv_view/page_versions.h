// What changed in the page map since when: a version number for each entry, found by comparing each new map
// with the one before. Equal versions mean equal pages and nodes.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/page_map.h"

namespace quire::server {

class PageVersions {
 public:
  // The first map gets version `first` (>= 1). Servers that start later should count from a higher one, so
  // that a client of an earlier server does not take its version for one of this.
  explicit PageVersions(std::uint64_t first) : first_(first) {}

  // Takes the map in, and leaves an older one's memory there for the next.
  void take(PageMap& map);

  const PageMap& map() const { return map_; }
  std::uint64_t version() const { return version_; }  // 0: no map was taken
  // Whether changes after `version` can be told; else everything must be.
  bool knows(std::uint64_t version) const { return version >= first_ && version <= version_; }
  // The version in which the page, or anything of the nodes, became what it is.
  std::uint64_t changed(std::size_t group, std::size_t page) const { return changed_[group][page]; }
  std::uint64_t nodes_changed() const { return nodes_changed_; }

 private:
  bool is_same_shape(const PageMap& map) const;

  std::uint64_t first_;
  std::uint64_t version_ = 0;
  std::uint64_t nodes_changed_ = 0;
  PageMap map_;
  std::vector<std::vector<std::uint64_t>> changed_;  // [groups][pages]
};

}  // namespace quire::server
