// One parameter on the ranks of a small mesh, for tests of a single way (schedule/way.h).
#pragma once
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/layout/dense.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/shard/make_parameter.h"
#include "tessera/shard/ways/way_bytes.h"
#include "tests/runtime/elements.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::shard {

struct WayMesh {
  int compute = 1, parts = 1, replicas = 1;
  bool zero = false;
  int node = 1;
  std::vector<int> dead = {};  // places without a rank
};

struct WayRank {
  WayRank(comm::World& world, const WayMesh& mesh, const ParameterSpec& spec, const ParameterTypes& types)
      : parallel(dense_parallel(world, mesh.compute, mesh.parts, mesh.replicas, /*with_casts=*/false, mesh.dead)),
        cuts(parallel.cuts()) {
    cuts.zero = mesh.zero;
    cuts.node = mesh.node;
    parameter = make_parameter(spec, types, cuts, parallel.place());
    parallel.provide(parameter, cuts);
    ways = WayBytes(spec, parameter.layouts, types, cuts, parameter.by_rows).at(parallel.place());
  }
  ParallelGroups parallel;
  Cuts cuts;
  ShardedParameter parameter;
  Ways ways;
};

inline void on_way_ranks(const WayMesh& mesh, const ParameterSpec& spec, const ParameterTypes& types,
                         const std::function<void(WayRank& rank)>& body) {
  const int ranks = mesh.compute * mesh.parts * mesh.replicas - static_cast<int>(mesh.dead.size());
  comm::run_local(ranks, {}, [&](comm::World& world) {
    WayRank rank(world, mesh, spec, types);
    body(rank);
  });
}

// Returns several parameters: matrices that are divided by rows and by columns into uneven parts, where one compute
// rank has no elements; a matrix whose parts overlap; a matrix with fewer rows than ranks; a vector that is whole on
// every rank; and a vector whose gradient is partial.
inline std::vector<ParameterSpec> way_specs(int compute) {
  std::vector<std::vector<layout::Range>> parts{{{0, 7}}}, overlap;
  if (compute == 2) parts = {{{0, 4}}, {{4, 7}}};
  if (compute == 3) parts = {{{0, 3}}, {}, {{3, 7}}};
  for (std::int64_t rank = 0; rank < compute; ++rank)
    overlap.push_back({{2 * rank, 2 * rank + 2}, {2 * compute, 2 * compute + 3}});
  const std::int64_t rows = 2 * std::int64_t{compute} + 3;
  return {
      {.name = "rows", .dims = {7, 5}, .compute = layout::rows_by_rank({7, 5}, parts)},
      {.name = "columns", .dims = {5, 7}, .compute = layout::cols_by_rank({5, 7}, parts), .produced_once = true},
      {.name = "overlap", .dims = {rows, 4}, .compute = layout::rows_by_rank({rows, 4}, overlap)},
      {.name = "small", .dims = {2, 3}, .compute = layout::cut_rows({2, 3}, {{"all", 2}}, compute)},
      {.name = "vector", .dims = {9}, .compute = layout::replicated({1, 9}, compute), .sharded = false},
      {.name = "partial vector",
       .dims = {9},
       .compute = layout::replicated({1, 9}, compute),
       .sharded = false,
       .partial_gradient = true},
  };
}

// Functions that write and read an element in memory.
inline void put(std::byte* memory, quant::DType type, std::int64_t at, float value) {
  if (type == quant::DType::bf16)
    reinterpret_cast<quant::bfloat16*>(memory)[at] = quant::bfloat16(value);
  else
    reinterpret_cast<float*>(memory)[at] = value;
}
inline float get(const std::byte* memory, quant::DType type, std::int64_t at) {
  if (type == quant::DType::bf16) return static_cast<float>(reinterpret_cast<const quant::bfloat16*>(memory)[at]);
  return reinterpret_cast<const float*>(memory)[at];
}

// Memory that is filled with NaN, followed by guard bytes of NaN.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : size_(bytes), buffer_(bytes + kGuard) {
    std::memset(buffer_.data(), 0xFF, buffer_.size());
  }
  std::byte* data() { return buffer_.data(); }
  std::span<std::byte> span() { return {buffer_.data(), size_}; }
  bool is_guard_whole() const { return is_poison(size_, kGuard); }
  bool is_all_poison() const { return is_poison(0, size_ + kGuard); }

 private:
  static constexpr std::size_t kGuard = 256;
  bool is_poison(std::size_t first, std::size_t bytes) const {
    for (std::size_t i = first; i < first + bytes; ++i)
      if (buffer_.data()[i] != std::byte{0xFF}) return false;
    return true;
  }
  std::size_t size_;
  base::Buffer buffer_;
};

inline std::vector<std::int64_t> indices_of(const layout::LocalLayout& local, std::int64_t cols) {
  std::vector<std::int64_t> indices;
  runtime::for_each_element(local, cols, [&](std::int64_t, std::int64_t index) { indices.push_back(index); });
  return indices;
}
inline bool has_index(const layout::LocalLayout& local, std::int64_t cols, std::int64_t index) {
  for (const layout::Piece& piece : local.pieces)
    if (piece.box.row <= index / cols && index / cols < piece.box.row + piece.box.rows &&
        piece.box.col <= index % cols && index % cols < piece.box.col + piece.box.cols)
      return true;
  return false;
}

}  // namespace tessera::shard
