#include "tessera/shard/plane.h"

#include <algorithm>

#include "tessera/layout/dense.h"
#include "tessera/layout/home.h"

namespace tessera::shard {

bool ParameterLayouts::overlaps() const {
  return home != compute || std::ranges::any_of(groups, &GroupLayouts::overlaps);
}

GroupLayouts ParameterLayouts::group(int part) const {
  if (groups.empty()) return {compute, home};
  return groups[static_cast<std::size_t>(part)];
}

layout::Layout ParameterLayouts::stored(int compute_rank, int parts) const {
  const layout::Layout part = layout::select(home, {compute_rank});
  return is_cut ? layout::cut_local_rows(part, parts, together) : layout::repeat(part, parts);
}

std::vector<layout::LocalLayout> ParameterLayouts::updated(const layout::LocalLayout& local, int replicas) const {
  return layout::cut_local_rows({.shape = home.shape, .ranks = {local}}, replicas, together).ranks;
}

std::int64_t ParameterLayouts::updated_elements(const layout::LocalLayout& local, int replicas, int replica) const {
  const layout::Shape dense = layout::dense_shape(local, "updated_elements");
  return layout::ceil_part(dense.rows, replica, replicas, together).size() * dense.cols;
}

}  // namespace tessera::shard
