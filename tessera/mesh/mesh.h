// The ranks of a run as places in grids with named axes, fastest first, and their groups.
// With tp 4 and dp 2: tp groups [0-3], [4-7]; dp groups [0,4], [1,5], [2,6], [3,7].
//
// Several grids may number the same places: dense weights are cut over the axes of one, experts over those of another.
// A place without a rank is dead. It is in no group, so groups along one axis may have different sizes.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::mesh {

struct Axis {
  std::string name;
  int size = 1;

  bool operator==(const Axis&) const = default;
};
using Grid = std::vector<Axis>;         // fastest first
using Axes = std::vector<std::string>;  // names of axes, in any order

// Immutable; the same on every rank.
class Mesh {
 public:
  // Every place has the rank of its number. Errors (InputError): a size below 1, a name twice, too many ranks.
  explicit Mesh(const Grid& grid);
  // places[r]: where rank r is; a place that is not listed is dead. Errors (InputError): as above; no grid; grids of
  // different numbers of places; an axis of two grids along which a rank's coordinate differs; a place outside the
  // grids or listed twice; no rank.
  Mesh(std::vector<Grid> grids, std::vector<int> places);

  int world_size() const { return static_cast<int>(places_.size()); }  // ranks
  const std::vector<Grid>& grids() const { return grids_; }
  // Places along an axis, dead ones included. Errors here and below (Error): an axis that no grid has, a rank that the
  // mesh does not have. Only tests call size() of one axis.
  int size(std::string_view axis) const;
  int coordinate(int rank, std::string_view axis) const;
  // The same along several axes of one grid together, of which the grid's fastest counts fastest. 1 and 0 without axes.
  int size(const Axes& axes) const;
  int coordinate(int rank, const Axes& axes) const;
  // Names of all axes of the first grid: their group is the world.
  Axes all_axes() const;
  bool has_dead_places() const { return places_.size() < ranks_.size(); }

  // All groups along the given axes of one grid: ranks that differ in no other coordinate there, each group in the
  // order of its places, groups ordered by the place of their first rank. Every rank makes them in this order. Without
  // axes every rank is a group of its own. Errors: axes that no grid has together.
  std::vector<std::vector<int>> groups(const Axes& axes) const;
  // The one of them that holds `rank`.
  std::vector<int> group_of(int rank, const Axes& axes) const;

 private:
  const Grid& grid_of(const Axes& axes) const;
  void check() const;

  std::vector<Grid> grids_;
  std::vector<int> places_;  // by rank
  std::vector<int> ranks_;   // by place; -1: dead
};

// The places of a grid but `dead` ones, in order: those of ranks that are numbered so. Errors (InputError): a dead
// place that the grid does not have, or given twice. Only tests call it.
std::vector<int> live_places(const Grid& grid, std::vector<int> dead);

}  // namespace tessera::mesh
