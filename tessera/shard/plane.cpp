#include "tessera/shard/plane.h"

#include "tessera/layout/home.h"

namespace tessera::shard {

layout::Layout ParameterLayouts::stored(int compute_rank, int parts) const {
  const layout::Layout part = layout::select(home, {compute_rank});
  return is_cut ? layout::cut_local_rows(part, parts, together) : layout::repeat(part, parts);
}

std::vector<layout::LocalLayout> ParameterLayouts::updated(const layout::LocalLayout& local, int replicas) const {
  return layout::cut_local_rows({.shape = home.shape, .ranks = {local}}, replicas, together).ranks;
}

}  // namespace tessera::shard
