#include "tessera/mesh/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

// The size of an axis, and the difference between the places of two neighbours along it.
struct Stride {
  int size = 1, step = 1;

  bool operator==(const Stride&) const = default;
};

int places_of(const Grid& grid) {
  std::int64_t places = 1;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const Axis& axis = grid[i];
    if (axis.size < 1) throw InputError("mesh axis '{}': expected a size of at least 1, got {}", axis.name, axis.size);
    for (std::size_t j = 0; j < i; ++j)
      if (grid[j].name == axis.name) throw InputError("mesh: axis '{}' is given twice", axis.name);
    places *= axis.size;
    if (places > std::numeric_limits<int>::max())
      throw InputError("mesh: more than {} ranks with axis '{}'", std::numeric_limits<int>::max(), axis.name);
  }
  return static_cast<int>(places);
}

std::optional<Stride> find(const Grid& grid, std::string_view name) {
  int step = 1;
  for (const Axis& axis : grid) {
    if (axis.name == name) return Stride{axis.size, step};
    step *= axis.size;
  }
  return std::nullopt;
}

std::string names_of(const std::vector<Grid>& grids) {
  std::vector<std::string> names;
  for (const Grid& grid : grids)
    for (const Axis& axis : grid) names.push_back(fmt::format("'{}'", axis.name));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<int> all_places(const Grid& grid) {
  std::vector<int> places(static_cast<std::size_t>(places_of(grid)));
  std::iota(places.begin(), places.end(), 0);
  return places;
}

}  // namespace

std::string to_string(const Grid& grid) {
  std::vector<std::string> axes;
  for (const Axis& axis : grid) axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(axes, " x "));
}

Mesh::Mesh(const Grid& grid) : Mesh({grid}, all_places(grid)) {}

Mesh::Mesh(std::vector<Grid> grids, std::vector<int> places) : grids_(std::move(grids)), places_(std::move(places)) {
  if (grids_.empty()) throw InputError("mesh: no axes");
  if (places_.empty()) throw InputError("mesh: no rank");
  const int count = places_of(grids_.front());
  ranks_.assign(static_cast<std::size_t>(count), -1);
  for (std::size_t rank = 0; rank < places_.size(); ++rank) {
    const int place = places_[rank];
    if (place < 0 || place >= count)
      throw InputError("mesh: rank {} is at place {}, expected one in [0, {})", rank, place, count);
    int& holder = ranks_[static_cast<std::size_t>(place)];
    if (holder >= 0) throw InputError("mesh: ranks {} and {} are both at place {}", holder, rank, place);
    holder = static_cast<int>(rank);
  }
  check();
}

// Checks that all grids have the same number of places, and that an axis of two grids has the same size and step in
// both.
void Mesh::check() const {
  for (const Grid& grid : grids_) {
    const int first = places_of(grids_.front()), count = places_of(grid);
    if (count != first)
      throw InputError("mesh: one grid has {} places, another grid has {}, expected the same number", first, count);
    for (const Axis& axis : grid)
      for (const Grid& other : grids_)
        if (const auto theirs = find(other, axis.name);
            theirs && theirs != find(grid, axis.name) && (theirs->size > 1 || axis.size > 1))
          throw InputError("mesh: axis '{}' differs between two grids: size {} with step {}, and size {} with step {}",
                           axis.name, find(grid, axis.name)->size, find(grid, axis.name)->step, theirs->size,
                           theirs->step);
  }
}

int Mesh::size(std::string_view axis) const {
  for (const Grid& grid : grids_)
    if (const auto found = find(grid, axis)) return found->size;
  throw Error("mesh: unknown axis '{}', expected one of {}", axis, names_of(grids_));
}

int Mesh::coordinate(int rank, std::string_view axis) const {
  TESSERA_CHECK(rank >= 0 && rank < world_size(), "mesh: expected a rank in [0, {}), got {}", world_size(), rank);
  for (const Grid& grid : grids_)
    if (const auto found = find(grid, axis)) return places_[static_cast<std::size_t>(rank)] / found->step % found->size;
  throw Error("mesh: unknown axis '{}', expected one of {}", axis, names_of(grids_));
}

int Mesh::size(const Axes& axes) const {
  int places = 1;
  for (const Axis& axis : grid_of(axes))
    if (std::ranges::find(axes, axis.name) != axes.end()) places *= axis.size;
  return places;
}

int Mesh::coordinate(int rank, const Axes& axes) const {
  int place = 0, step = 1;
  for (const Axis& axis : grid_of(axes)) {
    if (std::ranges::find(axes, axis.name) == axes.end()) continue;
    place += coordinate(rank, axis.name) * step;
    step *= axis.size;
  }
  return place;
}

Axes Mesh::all_axes() const {
  Axes axes;
  for (const Axis& axis : grids_.front()) axes.push_back(axis.name);
  return axes;
}

const Grid& Mesh::grid_of(const Axes& axes) const {
  for (const Grid& grid : grids_)
    if (std::ranges::all_of(axes, [&](const std::string& axis) { return find(grid, axis).has_value(); })) return grid;
  throw Error("mesh: no grid has all of the axes {}, the axes are {}", fmt::join(axes, ", "), names_of(grids_));
}

std::vector<std::pair<int, int>> Mesh::strides(const Axes& axes) const {
  std::vector<std::pair<int, int>> strides;
  int step = 1;
  for (const Axis& axis : grid_of(axes)) {
    const bool is_given = std::ranges::find(axes, axis.name) != axes.end() && axis.size > 1;
    if (is_given && !strides.empty() && strides.back().first * strides.back().second == step)
      strides.back().first *= axis.size;
    else if (is_given)
      strides.emplace_back(axis.size, step);
    step *= axis.size;
  }
  return strides;
}

std::vector<int> Mesh::group_of(int rank, const Axes& axes) const {
  TESSERA_CHECK(rank >= 0 && rank < world_size(), "mesh: expected a rank in [0, {}), got {}", world_size(), rank);
  const int own = places_[static_cast<std::size_t>(rank)];
  std::vector<int> places{0};
  int step = 1;
  for (const Axis& axis : grid_of(axes)) {
    const bool varies = std::ranges::find(axes, axis.name) != axes.end();
    const std::size_t known = places.size();
    const int first = varies ? 0 : own / step % axis.size;
    for (int c = first + 1; varies && c < axis.size; ++c)
      for (std::size_t k = 0; k < known; ++k) places.push_back(places[k] + c * step);
    for (std::size_t k = 0; k < known; ++k) places[k] += first * step;
    step *= axis.size;
  }
  std::vector<int> group;
  for (const int place : places)
    if (const int holder = ranks_[static_cast<std::size_t>(place)]; holder >= 0) group.push_back(holder);
  return group;
}

std::vector<std::vector<int>> Mesh::groups(const Axes& axes) const {
  std::vector<std::vector<int>> result;
  std::vector<bool> is_in_one(places_.size());  // index: rank
  for (const int rank : ranks_) {
    if (rank < 0 || is_in_one[static_cast<std::size_t>(rank)]) continue;
    result.push_back(group_of(rank, axes));
    for (const int member : result.back()) is_in_one[static_cast<std::size_t>(member)] = true;
  }
  return result;
}

std::vector<int> live_places(const Grid& grid, std::vector<int> dead) {
  const std::vector<int> all = all_places(grid);
  std::ranges::sort(dead);
  for (std::size_t i = 0; i < dead.size(); ++i) {
    if (dead[i] < 0 || static_cast<std::size_t>(dead[i]) >= all.size())
      throw InputError("mesh: got a dead place {}, expected a place in [0, {})", dead[i], all.size());
    if (i > 0 && dead[i] == dead[i - 1]) throw InputError("mesh: dead place {} is given twice", dead[i]);
  }
  std::vector<int> live;
  std::ranges::set_difference(all, dead, std::back_inserter(live));
  return live;
}

}  // namespace tessera::mesh
