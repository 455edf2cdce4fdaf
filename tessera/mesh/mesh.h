// The ranks of a run as a grid with named axes, fastest first, and its groups.
// With tp 4 and dp 2: tp groups [0-3], [4-7]; dp groups [0,4], [1,5], [2,6], [3,7].
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::mesh {

struct Axis {
  std::string name;
  int size = 1;
};

// Immutable; the same on every rank.
class Mesh {
 public:
  // Axes fastest first. Errors (InputError): a size below 1, a name twice.
  explicit Mesh(std::vector<Axis> axes);

  int world_size() const;
  const std::vector<Axis>& axes() const { return axes_; }
  int size(std::string_view axis) const;  // 1 for an axis the mesh does not have

  // Coordinate of `rank` along `axis` (0 for an axis the mesh does not have).
  int coordinate(int rank, std::string_view axis) const;
  std::vector<int> coordinates(int rank) const;         // one an axis, in axes() order
  int rank_of(std::span<const int> coordinates) const;  // inverse of coordinates()

  // All groups along the given axes (any subset, any order), each with its ranks in mesh order; groups ordered by their
  // first rank. Every rank makes them in this order.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& axes) const;
  // The one of them that holds `rank`.
  std::vector<int> group_of(int rank, const std::vector<std::string>& axes) const;

 private:
  std::vector<Axis> axes_;
};

}  // namespace tessera::mesh
