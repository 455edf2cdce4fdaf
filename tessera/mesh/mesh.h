// A mesh assigns the ranks of a run to places in grids, and computes groups of ranks. The axes of a grid have names and
// are listed fastest first. With tp 4 and dp 2, the tp groups are [0-3], [4-7] and the dp groups are [0,4], [1,5],
// [2,6], [3,7].
//
// Several grids may number the same places. For example, dense weights are sharded over the axes of one grid, and
// experts over the axes of another grid. A place without a rank is dead. A dead place is in no group, so groups along
// one axis may have different sizes.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::mesh {

struct Axis {
  std::string name;
  int size = 1;

  bool operator==(const Axis&) const = default;
};
using Grid = std::vector<Axis>;           // fastest first
using Axes = std::vector<std::string>;    // names of axes, in any order
std::string to_string(const Grid& grid);  // "tp 2 x gtp 4 x dp 1"

// Immutable. Every rank constructs the same mesh.
class Mesh {
 public:
  // Rank r is at place r. Throws InputError for a size below 1, a name that is given twice, or too many ranks.
  explicit Mesh(const Grid& grid);
  // Rank r is at places[r]. A place that is not listed is dead. Two grids may have an axis of the same name. Throws the
  // errors of the other constructor, and InputError for: no grids or no ranks; grids with different numbers of places;
  // a place outside the grids, or listed twice; a place with different coordinates on axes of the same name.
  Mesh(std::vector<Grid> grids, std::vector<int> places);

  int world_size() const { return static_cast<int>(places_.size()); }  // number of ranks
  const std::vector<Grid>& grids() const { return grids_; }
  // Returns the number of places along an axis, including dead places. This and the following functions throw Error for
  // an axis that is in no grid and for a rank that does not exist.
  int size(std::string_view axis) const;
  int coordinate(int rank, std::string_view axis) const;
  // Return the size and coordinate of several axes of one grid, combined to one axis. The axes keep their order in the
  // grid, fastest first. Without axes, the size is 1 and the coordinate is 0.
  int size(const Axes& axes) const;
  int coordinate(int rank, const Axes& axes) const;
  // Returns the names of all axes of the first grid. The group along all these axes is the world.
  Axes all_axes() const;
  bool has_dead_places() const { return places_.size() < ranks_.size(); }

  // Returns all groups along the given axes of one grid. The ranks of a group have equal coordinates along all other
  // axes of the grid. Each group is in the order of places, and groups are in the order of their first ranks' places.
  // The order is the same on every rank. Without axes, every rank is a group of its own. Throws Error if no grid
  // contains all the axes.
  std::vector<std::vector<int>> groups(const Axes& axes) const;
  // Returns the sizes of the given axes of one grid, and the differences between the places of two neighbours along
  // each, fastest first. Axes of size 1 are left out, and adjacent axes are combined. In a mesh without dead places,
  // the groups along two lists of axes are equal if and only if these numbers are equal.
  std::vector<std::pair<int, int>> strides(const Axes& axes) const;
  // Returns the group that contains `rank`.
  std::vector<int> group_of(int rank, const Axes& axes) const;

 private:
  const Grid& grid_of(const Axes& axes) const;
  void check() const;

  std::vector<Grid> grids_;
  std::vector<int> places_;  // by rank
  std::vector<int> ranks_;   // by place; -1: dead
};

// Returns all places of a grid except `dead`, in order. Mesh accepts the result as the places of its ranks. Throws
// InputError for a dead place that is outside the grid or given twice.
std::vector<int> live_places(const Grid& grid, std::vector<int> dead);

}  // namespace tessera::mesh
