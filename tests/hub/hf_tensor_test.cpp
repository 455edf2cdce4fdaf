#include "tessera/models/hf_tensor.h"

#include <set>

#include "tessera/checkpoint/cover.h"
#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using namespace testing;

std::map<std::string, std::vector<std::int64_t>> shapes(const std::vector<LogicalTensor>& tensors) {
  std::map<std::string, std::vector<std::int64_t>> map;
  for (const LogicalTensor& tensor : tensors) map[tensor.name] = tensor.dims;
  return map;
}

TEST(HfTensors, LogicalTensorsHaveTheModelsShapes) {
  const auto tensors = shapes(logical_of(odd_llama(false)));
  EXPECT_EQ(tensors.size(), 3u + 2u * 6u);
  using Dims = std::vector<std::int64_t>;
  EXPECT_EQ(tensors.at("embedding.weight"), (Dims{131, 20}));
  EXPECT_EQ(tensors.at("layers.1.attention_norm.weight"), (Dims{20}));
  EXPECT_EQ(tensors.at("layers.1.attention.qkv.weight"), (Dims{48, 20}));
  EXPECT_EQ(tensors.at("layers.0.attention.output.weight"), (Dims{20, 24}));
  EXPECT_EQ(tensors.at("layers.0.mlp_norm.weight"), (Dims{20}));
  EXPECT_EQ(tensors.at("layers.0.mlp.gate_up.weight"), (Dims{66, 20}));
  EXPECT_EQ(tensors.at("layers.0.mlp.down.weight"), (Dims{20, 33}));
  EXPECT_EQ(tensors.at("norm.weight"), (Dims{20}));
  EXPECT_EQ(tensors.at("output.weight"), (Dims{131, 20}));
}

TEST(HfTensors, TheLogicalTensorsHoldAllParameters) {
  for (const bool tied : {false, true}) {
    std::int64_t elements = 0;
    for (const LogicalTensor& tensor : logical_of(odd_llama(tied)))
      elements += layout::matrix_shape(tensor.dims).elements();
    EXPECT_EQ(elements, models::num_params(models::LlamaConfig(odd_llama(tied))));
    EXPECT_EQ(shapes(logical_of(odd_llama(tied))).contains("output.weight"), !tied);
  }
}

TEST(HfTensors, PartsTileEachTensorAndHaveUniqueNames) {
  const models::DecoderConfig config = odd_llama(false);
  std::map<std::string, std::vector<layout::Box>> boxes;
  std::set<std::string> names;
  for (const HfTensor& part : hf_tensors(config)) {
    boxes[part.name].push_back(part.box);
    EXPECT_TRUE(names.insert(part.hf_name).second) << part.hf_name;
    EXPECT_EQ(layout::matrix_shape(part.dims).elements(), part.box.elements());
  }
  for (const LogicalTensor& tensor : logical_of(config))
    EXPECT_FALSE(checkpoint::cover_fault(layout::matrix_shape(tensor.dims), boxes.at(tensor.name))) << tensor.name;
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight", "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight",
        "model.layers.1.self_attn.o_proj.weight", "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
        "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"})
    EXPECT_TRUE(names.contains(name)) << name;
}

}  // namespace
}  // namespace tessera::hub
