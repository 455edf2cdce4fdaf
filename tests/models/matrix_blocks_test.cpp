// The matrices of the parameters are the matrices of a Hugging Face folder.
#include "tessera/shard/matrices/matrix_blocks.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera::models {
namespace {

using Place = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;  // parameter, first row, rows, columns

Place place(const std::string& parameter, const layout::Box& box) {
  return {parameter, box.row, box.rows, box.cols};
}

TEST(MatrixBlocks, AreTheMatricesOfAHuggingFaceFolder) {
  for (const char* name : {"llama-tiny-odd", "llama3-70b", "qwen2-tiny-odd", "qwen3-tiny-odd", "mixtral-8x7b",
                           "mixtral-tiny-odd", "qwen3-30b-a3b", "dots1-tiny-odd"}) {
    const ModelConfigPtr model = read_model_config(find_model_config(name, TESSERA_CONFIGS));
    std::set<Place> expected, blocks;
    for (const HfTensor& tensor : model->hf_tensors())
      if (tensor.dims.size() == 2) expected.insert(place(tensor.name, tensor.box));
    for (const shard::ParameterSpec& spec : model->parameters({.tp_size = 2}))
      if (spec.dims.size() >= 2)
        for (const shard::MatrixBlock& matrix : shard::matrix_blocks(spec)) {
          EXPECT_EQ(matrix.box.col, 0);
          EXPECT_TRUE(blocks.insert(place(spec.name, matrix.box)).second) << spec.name << " " << matrix.name;
        }
    EXPECT_EQ(blocks, expected) << name;
  }
}

TEST(MatrixBlocks, HiddenMatricesAreTheProjections) {
  for (const char* name : {"llama-tiny", "llama-tiny-odd", "qwen2-tiny-odd", "mixtral-tiny-odd", "dots1-tiny-odd"}) {
    const ModelConfigPtr model = read_model_config(find_model_config(name, TESSERA_CONFIGS));
    std::set<std::string> projections, hidden;
    for (const HfTensor& tensor : model->hf_tensors())
      if (tensor.may_be_quantized) projections.insert(tensor.name);
    for (const shard::ParameterSpec& spec : model->parameters({.tp_size = 1})) {
      if (!spec.is_hidden_matrix) continue;
      hidden.insert(spec.name);
      EXPECT_TRUE(shard::has_matrices(spec)) << spec.name;
    }
    EXPECT_EQ(hidden, projections) << name;
  }
}

TEST(MatrixBlocks, HaveNames) {
  const ModelConfigPtr model = read_model_config(find_model_config("mixtral-tiny-odd", TESSERA_CONFIGS));
  std::set<std::string> names;
  for (const shard::ParameterSpec& spec : model->parameters({.tp_size = 1}))
    if (spec.dims.size() >= 2)
      for (const shard::MatrixBlock& matrix : shard::matrix_blocks(spec)) names.insert(matrix.name);
  for (const char* name : {"", "q", "k", "v", "gate of 0", "up of 1", "1"}) EXPECT_TRUE(names.contains(name)) << name;
}

TEST(MatrixBlocks, RefusesVectorsAndBlocksThatDoNotCoverTheRows) {
  shard::ParameterSpec spec{.name = "w", .dims = {6}, .compute = layout::replicated({1, 6}, 1)};
  EXPECT_FALSE(shard::has_matrices(spec));
  EXPECT_THROW(shard::matrix_blocks(spec), Error);
  spec.dims = {2, 3, 4};
  spec.blocks = {{.name = "a", .rows = 1}, {.name = "b", .rows = 1}};
  EXPECT_THROW(shard::matrix_blocks(spec), Error);
  spec.blocks.back().rows = 2;
  EXPECT_EQ(shard::matrix_blocks(spec).size(), 4U);
  spec.looked_up = true;
  EXPECT_FALSE(shard::has_matrices(spec));
}

}  // namespace
}  // namespace tessera::models
