#include "tessera/mesh/mesh.h"

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::mesh {

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
  std::int64_t ranks = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const Axis& axis = axes_[i];
    if (axis.size < 1) throw InputError("mesh axis '{}': expected a size of at least 1, got {}", axis.name, axis.size);
    for (std::size_t j = 0; j < i; ++j)
      if (axes_[j].name == axis.name) throw InputError("mesh: axis '{}' is given twice", axis.name);
    ranks *= axis.size;
    if (ranks > std::numeric_limits<int>::max())
      throw InputError("mesh: more than {} ranks with axis '{}'", std::numeric_limits<int>::max(), axis.name);
  }
}

int Mesh::world_size() const {
  int ranks = 1;
  for (const Axis& axis : axes_) ranks *= axis.size;
  return ranks;
}

int Mesh::size(std::string_view axis) const {
  for (const Axis& candidate : axes_)
    if (candidate.name == axis) return candidate.size;
  return 1;
}

int Mesh::coordinate(int rank, std::string_view axis) const {
  TESSERA_CHECK(rank >= 0 && rank < world_size(), "mesh: expected a rank in [0, {}), got {}", world_size(), rank);
  for (const Axis& candidate : axes_) {
    if (candidate.name == axis) return rank % candidate.size;
    rank /= candidate.size;
  }
  return 0;
}

std::vector<int> Mesh::coordinates(int rank) const {
  TESSERA_CHECK(rank >= 0 && rank < world_size(), "mesh: expected a rank in [0, {}), got {}", world_size(), rank);
  std::vector<int> result;
  for (const Axis& axis : axes_) {
    result.push_back(rank % axis.size);
    rank /= axis.size;
  }
  return result;
}

int Mesh::rank_of(std::span<const int> coordinates) const {
  TESSERA_CHECK(coordinates.size() == axes_.size(), "mesh: expected {} coordinates, got {}", axes_.size(),
                coordinates.size());
  int rank = 0, step = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    TESSERA_CHECK(coordinates[i] >= 0 && coordinates[i] < axes_[i].size,
                  "mesh: expected a coordinate in [0, {}) along '{}', got {}", axes_[i].size, axes_[i].name,
                  coordinates[i]);
    rank += coordinates[i] * step;
    step *= axes_[i].size;
  }
  return rank;
}

std::vector<int> Mesh::group_of(int rank, const std::vector<std::string>& axes) const {
  const std::vector<int> own = coordinates(rank);
  std::vector<int> ranks{0};
  int step = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const bool varies = std::find(axes.begin(), axes.end(), axes_[i].name) != axes.end();
    const std::size_t known = ranks.size();
    const int first = varies ? 0 : own[i];
    for (int c = first + 1; varies && c < axes_[i].size; ++c)
      for (std::size_t k = 0; k < known; ++k) ranks.push_back(ranks[k] + c * step);
    for (std::size_t k = 0; k < known; ++k) ranks[k] += first * step;
    step *= axes_[i].size;
  }
  return ranks;
}

std::vector<std::vector<int>> Mesh::groups(const std::vector<std::string>& axes) const {
  std::vector<std::vector<int>> result;
  for (int rank = 0; rank < world_size(); ++rank) {
    std::vector<int> group = group_of(rank, axes);
    if (group.front() == rank) result.push_back(std::move(group));
  }
  return result;
}

}  // namespace tessera::mesh
