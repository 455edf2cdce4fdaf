#include "tessera/shard/matrices/matrix_blocks.h"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

std::string name_of(const layout::Block& block, std::int64_t matrix, bool is_stack) {
  if (!is_stack) return block.name;
  return block.name.empty() ? fmt::format("{}", matrix) : fmt::format("{} of {}", block.name, matrix);
}

}  // namespace

bool has_matrices(const ParameterSpec& spec) {
  return spec.dims.size() >= 2 && !spec.looked_up;
}

std::vector<MatrixBlock> matrix_blocks(const ParameterSpec& spec) {
  TESSERA_CHECK(spec.dims.size() >= 2, "parameter '{}': a vector has no matrices", spec.name);
  const layout::Shape shape = layout::matrix_shape(spec.dims);
  const std::int64_t stack = matrices_of(spec), rows = spec.dims[spec.dims.size() - 2];
  std::vector<layout::Block> blocks = spec.blocks;
  if (blocks.empty()) blocks.push_back({.name = "", .rows = rows});
  std::int64_t covered = 0;
  for (const layout::Block& block : blocks) covered += block.rows;
  TESSERA_CHECK(covered == rows, "parameter '{}': its blocks have {} rows, expected the {} rows of a matrix", spec.name,
                covered, rows);
  std::vector<MatrixBlock> matrices;
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < stack; ++i)
    for (const layout::Block& block : blocks) {
      layout::Box box{.row = row, .rows = block.rows, .col = 0, .cols = shape.cols};
      row += block.rows;
      if (!box.empty()) matrices.push_back({name_of(block, i, spec.dims.size() == 3), box});
    }
  return matrices;
}

}  // namespace tessera::shard
