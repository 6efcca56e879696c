#include "server/kv_view/page_versions.h"

#include <utility>

namespace quire::server {

bool PageVersions::is_same_shape(const PageMap& map) const {
  if (map.groups.size() != map_.groups.size()) return false;
  for (std::size_t g = 0; g < map.groups.size(); ++g)
    if (map.groups[g].pages.size() != map_.groups[g].pages.size()) return false;
  return true;
}

void PageVersions::take(PageMap& map) {
  const std::uint64_t next = version_ == 0 ? first_ : version_ + 1;
  bool any = version_ == 0;
  if (any || !is_same_shape(map)) {
    changed_.clear();
    for (const PageGroup& group : map.groups) changed_.emplace_back(group.pages.size(), next);
    nodes_changed_ = next;
    any = true;
  } else {
    for (std::size_t g = 0; g < map.groups.size(); ++g) {
      const std::vector<PageState>& pages = map.groups[g].pages;
      for (std::size_t p = 0; p < pages.size(); ++p) {
        if (pages[p] == map_.groups[g].pages[p]) continue;
        changed_[g][p] = next;
        any = true;
      }
    }
    if (map.nodes != map_.nodes) {
      nodes_changed_ = next;
      any = true;
    }
  }
  if (any) version_ = next;
  std::swap(map_, map);
}

}  // namespace quire::server
