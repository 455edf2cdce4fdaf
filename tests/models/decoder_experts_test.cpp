// Tests the layouts, the parameters and the file names of experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/models/architectures/mixtral.h"
#include "tessera/models/architectures/qwen3_moe.h"
#include "tessera/models/decoder/decoder_layouts.h"
#include "tessera/models/decoder/decoder_parameters.h"
#include "tessera/nn/mesh_degrees.h"

namespace tessera::models {
namespace {

using Dims = std::vector<std::int64_t>;
using ::testing::ElementsAre;

// Layer 0 is sparse, layer 1 is dense.
DecoderConfig sparse_model(std::int64_t experts = 7, std::int64_t width = 5) {
  DecoderConfig config;
  config.vocab_size = 19, config.hidden_size = 6, config.intermediate_size = 11;
  config.num_layers = 2, config.num_heads = 6, config.num_kv_heads = 2, config.head_dim = 4;
  config.experts = ExpertsConfig{.count = experts, .per_token = 2, .width = width, .sparse = {true, false}};
  return config;
}

// The elements of a rank's dense local matrix, in memory order, as logical rows and columns.
std::vector<std::pair<std::int64_t, std::int64_t>> elements_of(const layout::LocalLayout& local) {
  std::vector<std::pair<std::int64_t, std::int64_t>> at(static_cast<std::size_t>(local.size), {-1, -1});
  for (const layout::Piece& piece : local.pieces)
    for (std::int64_t row = 0; row < piece.box.rows; ++row)
      for (std::int64_t col = 0; col < piece.box.cols; ++col)
        at.at(static_cast<std::size_t>(piece.offset + row * piece.stride + col)) = {piece.box.row + row,
                                                                                    piece.box.col + col};
  return at;
}

struct Sizes {
  std::int64_t experts, width;
  int etp, ep;
};
class ExpertLayouts : public ::testing::TestWithParam<Sizes> {
 protected:
  DecoderConfig config_ = sparse_model(GetParam().experts, GetParam().width);
  layout::Layout gate_up_ = experts_gate_up_layout(config_, GetParam().etp, GetParam().ep);
  layout::Layout down_ = experts_down_layout(config_, GetParam().etp, GetParam().ep);
};

TEST_P(ExpertLayouts, HoldEachElementOnce) {
  const auto [experts, width, etp, ep] = GetParam();
  EXPECT_EQ(gate_up_.shape, (layout::Shape{experts * 2 * width, 6}));
  EXPECT_EQ(down_.shape, (layout::Shape{experts * 6, width}));
  for (const layout::Layout& layout : {gate_up_, down_}) {
    EXPECT_EQ(layout.ranks.size(), static_cast<std::size_t>(etp * ep));
    EXPECT_NO_THROW(layout::validate(layout, layout::Cover::exact));
  }
}

// Rank (t, p) is rank t + etp * p. Its matrix of an expert is gate | up by rows, and its part of down has the columns
// with the same numbers.
TEST_P(ExpertLayouts, HaveTheOrderOfTheProducts) {
  const auto [experts, width, etp, ep] = GetParam();
  for (int p = 0; p < ep; ++p)
    for (int t = 0; t < etp; ++t) {
      const layout::Range own = layout::even_part(experts, p, ep), part = layout::even_part(width, t, etp);
      std::vector<std::pair<std::int64_t, std::int64_t>> gate_up, down;
      for (std::int64_t expert = own.begin; expert < own.end; ++expert) {
        for (const std::int64_t half : {0, 1})
          for (std::int64_t unit = part.begin; unit < part.end; ++unit)
            for (std::int64_t col = 0; col < 6; ++col) gate_up.emplace_back((2 * expert + half) * width + unit, col);
        for (std::int64_t row = 0; row < 6; ++row)
          for (std::int64_t unit = part.begin; unit < part.end; ++unit) down.emplace_back(expert * 6 + row, unit);
      }
      const auto rank = static_cast<std::size_t>(t + etp * p);
      EXPECT_EQ(elements_of(gate_up_.ranks[rank]), gate_up) << "t " << t << " p " << p;
      EXPECT_EQ(elements_of(down_.ranks[rank]), down) << "t " << t << " p " << p;
      EXPECT_TRUE(layout::is_dense(gate_up_.ranks[rank]));
      EXPECT_TRUE(layout::is_dense(down_.ranks[rank]));
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExpertLayouts,
                         ::testing::Values(Sizes{7, 5, 1, 1}, Sizes{7, 5, 3, 1}, Sizes{7, 5, 1, 3}, Sizes{7, 5, 2, 2},
                                           Sizes{7, 5, 3, 2}, Sizes{7, 1, 3, 2}, Sizes{3, 5, 1, 4}, Sizes{3, 5, 2, 4},
                                           Sizes{8, 8, 4, 2}, Sizes{1, 2, 1, 1}),
                         [](const auto& info) {
                           const Sizes& s = info.param;
                           return fmt::format("experts{}_width{}_etp{}_ep{}", s.experts, s.width, s.etp, s.ep);
                         });

TEST(ExpertLayoutSizes, AnOwnerMayHaveNoExpert) {
  const DecoderConfig config = sparse_model(3);
  const auto experts_on = [](const layout::Layout& layout, std::int64_t expert_elements) {
    std::vector<std::int64_t> counts;
    for (const layout::LocalLayout& local : layout.ranks) counts.push_back(local.size / expert_elements);
    std::ranges::sort(counts);
    return counts;
  };
  EXPECT_THAT(experts_on(experts_gate_up_layout(config, 1, 4), 2 * 5 * 6), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(experts_on(experts_down_layout(config, 1, 4), 5 * 6), ElementsAre(0, 1, 1, 1));
}

const shard::ParameterSpec& named(const std::vector<shard::ParameterSpec>& specs, const std::string& name) {
  const auto found = std::ranges::find(specs, name, &shard::ParameterSpec::name);
  if (found == specs.end()) throw Error("no parameter '{}'", name);
  return *found;
}

TEST(ExpertParameters, ReplaceTheDenseMatricesOfSparseLayers) {
  std::vector<std::string> names;
  for (const shard::ParameterSpec& spec : decoder_parameters(sparse_model(), {})) names.push_back(spec.name);
  EXPECT_THAT(
      names,
      ElementsAre("embedding.weight", "layers.0.attention_norm.weight", "layers.0.attention.qkv.weight",
                  "layers.0.attention.output.weight", "layers.0.mlp_norm.weight", "layers.0.router.weight",
                  "layers.0.experts.gate_up.weight", "layers.0.experts.down.weight", "layers.1.attention_norm.weight",
                  "layers.1.attention.qkv.weight", "layers.1.attention.output.weight", "layers.1.mlp_norm.weight",
                  "layers.1.mlp.gate_up.weight", "layers.1.mlp.down.weight", "norm.weight", "output.weight"));
}

TEST(ExpertParameters, HaveTheIdsOfTheirPlaces) {
  DecoderConfig config = sparse_model();
  config.has_head_norms = true;
  const std::vector<shard::ParameterSpec> specs = decoder_parameters(config, {});
  const DecoderIds ids = decoder_ids(config);
  const DecoderBlockIds &sparse = ids.blocks[0], &dense = ids.blocks[1];
  EXPECT_EQ(specs[sparse.router].name, "layers.0.router.weight");
  EXPECT_EQ(specs[sparse.experts_gate_up].name, "layers.0.experts.gate_up.weight");
  EXPECT_EQ(specs[sparse.experts_down].name, "layers.0.experts.down.weight");
  EXPECT_EQ(sparse.gate_up, schedule::kNoParameter);
  EXPECT_EQ(sparse.down, schedule::kNoParameter);
  EXPECT_EQ(specs[dense.gate_up].name, "layers.1.mlp.gate_up.weight");
  EXPECT_EQ(specs[dense.down].name, "layers.1.mlp.down.weight");
  EXPECT_EQ(dense.router, schedule::kNoParameter);
  EXPECT_EQ(dense.experts_gate_up, schedule::kNoParameter);
  EXPECT_EQ(dense.experts_down, schedule::kNoParameter);
  EXPECT_EQ(specs[ids.norm].name, "norm.weight");
  EXPECT_EQ(specs[ids.output].name, "output.weight");
}

TEST(ExpertParameters, OfExpertsBelongToTheirDomain) {
  const DecoderConfig config = sparse_model();
  const std::vector<shard::ParameterSpec> specs = decoder_parameters(config, {.tp_size = 2, .etp = 2, .ep = 3});
  const shard::ParameterSpec& gate_up = named(specs, "layers.0.experts.gate_up.weight");
  const shard::ParameterSpec& down = named(specs, "layers.0.experts.down.weight");
  EXPECT_EQ(gate_up.dims, (Dims{7, 10, 6}));
  EXPECT_EQ(down.dims, (Dims{7, 6, 5}));
  EXPECT_EQ(gate_up.compute, experts_gate_up_layout(config, 2, 3));
  EXPECT_EQ(down.compute, experts_down_layout(config, 2, 3));
  for (const shard::ParameterSpec* spec : {&gate_up, &down}) {
    EXPECT_EQ(spec->domain, nn::kExpertDomain) << spec->name;
    EXPECT_EQ(layout::matrix_shape(spec->dims), spec->compute.shape) << spec->name;
    EXPECT_FALSE(!spec->takes_formats || spec->is_wide || spec->partial_gradient) << spec->name;
    EXPECT_TRUE(spec->produced_once && spec->decay && spec->sharded) << spec->name;
    EXPECT_EQ(spec->initial_deviation, config.initializer_range) << spec->name;
  }
  for (const shard::ParameterSpec& spec : specs) {
    const bool is_of_experts = spec.name.find(".experts.") != std::string::npos;
    EXPECT_EQ(spec.domain == nn::kExpertDomain, is_of_experts) << spec.name;
    EXPECT_EQ(spec.compute.ranks.size(), is_of_experts ? 6u : 2u) << spec.name;
  }
}

TEST(ExpertParameters, RoutersAreWideAndOnEveryTpRank) {
  for (const bool splits_tokens : {false, true}) {
    const std::vector<shard::ParameterSpec> specs =
        decoder_parameters(sparse_model(), {.tp_size = 2, .partial_norms = splits_tokens});
    const shard::ParameterSpec& router = named(specs, "layers.0.router.weight");
    EXPECT_EQ(router.dims, (Dims{7, 6}));
    EXPECT_EQ(router.compute, layout::replicated({7, 6}, 2));
    EXPECT_EQ(router.domain, 0);
    EXPECT_EQ(router.partial_gradient, splits_tokens);
    EXPECT_TRUE(router.is_wide && router.decay && router.sharded && router.produced_once);
    EXPECT_FALSE(router.takes_formats);
    for (const shard::ParameterSpec& spec : specs) EXPECT_EQ(spec.is_wide, &spec == &router) << spec.name;
  }
}

std::vector<std::string> expert_names(const ModelConfig& model, ExpertTensors form) {
  std::vector<std::string> found;
  for (const HfTensor& tensor : model.hf_tensors(form))
    if (tensor.name.find("router") != std::string::npos || tensor.name.find("experts") != std::string::npos)
      found.push_back(tensor.hf_name);
  return found;
}

TEST(ExpertTensorNames, OfSeparateTensors) {
  const std::string mixtral = "model.layers.0.block_sparse_moe.", qwen = "model.layers.0.mlp.";
  EXPECT_THAT(expert_names(MixtralConfig(sparse_model(2)), ExpertTensors::separate),
              ElementsAre(mixtral + "gate.weight", mixtral + "experts.0.w1.weight", mixtral + "experts.0.w3.weight",
                          mixtral + "experts.1.w1.weight", mixtral + "experts.1.w3.weight",
                          mixtral + "experts.0.w2.weight", mixtral + "experts.1.w2.weight"));
  EXPECT_THAT(expert_names(Qwen3MoeConfig(sparse_model(1)), ExpertTensors::separate),
              ElementsAre(qwen + "gate.weight", qwen + "experts.0.gate_proj.weight", qwen + "experts.0.up_proj.weight",
                          qwen + "experts.0.down_proj.weight"));
}

TEST(ExpertTensorNames, OfFusedTensors) {
  const std::string mixtral = "model.layers.0.block_sparse_moe.", mlp = "model.layers.0.mlp.";
  EXPECT_THAT(expert_names(MixtralConfig(sparse_model()), ExpertTensors::fused_in_module),
              ElementsAre(mixtral + "gate.weight", mixtral + "experts.gate_up_proj", mixtral + "experts.down_proj"));
  EXPECT_THAT(expert_names(MixtralConfig(sparse_model()), ExpertTensors::fused),
              ElementsAre(mlp + "gate.weight", mlp + "experts.gate_up_proj", mlp + "experts.down_proj"));
  std::map<std::string, Dims> dims;
  for (const HfTensor& tensor : MixtralConfig(sparse_model()).hf_tensors(ExpertTensors::fused))
    dims[tensor.hf_name] = tensor.dims;
  EXPECT_EQ(dims.at(mlp + "experts.gate_up_proj"), (Dims{7, 10, 6}));
  EXPECT_EQ(dims.at(mlp + "experts.down_proj"), (Dims{7, 6, 5}));
}

// In every form, the tensors of a parameter tile its matrix, and the parameter has the same shape.
TEST(ExpertTensorNames, TileEachParameterInEveryForm) {
  const DecoderConfig config = sparse_model();
  const std::vector<shard::ParameterSpec> specs = decoder_parameters(config, {});
  for (const ExpertTensors form : {ExpertTensors::separate, ExpertTensors::fused, ExpertTensors::fused_in_module}) {
    const std::vector<HfTensor> tensors = MixtralConfig(config).hf_tensors(form);
    const std::vector<LogicalTensor> logical = logical_tensors(tensors);
    ASSERT_EQ(logical.size(), specs.size());
    std::set<std::string> names;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(logical[i].name, specs[i].name);
      EXPECT_EQ(logical[i].dims, specs[i].dims) << specs[i].name;
      EXPECT_EQ(logical[i].is_wide, specs[i].is_wide) << specs[i].name;
      std::vector<std::vector<layout::Range>> rows(1);
      const layout::Shape shape = layout::matrix_shape(specs[i].dims);
      for (const HfTensor& tensor : tensors) {
        if (tensor.name != specs[i].name || shape.rows == 1) continue;
        EXPECT_EQ(tensor.box.cols, shape.cols) << tensor.hf_name;
        EXPECT_EQ(layout::matrix_shape(tensor.dims).elements(), tensor.box.elements()) << tensor.hf_name;
        rows[0].push_back({tensor.box.row, tensor.box.row + tensor.box.rows});
      }
      if (shape.rows == 1) continue;
      EXPECT_NO_THROW(layout::validate(layout::rows_by_rank(shape, rows), layout::Cover::exact)) << specs[i].name;
    }
    for (const HfTensor& tensor : tensors) EXPECT_TRUE(names.insert(tensor.hf_name).second) << tensor.hf_name;
  }
}

TEST(ExpertTensorNames, RoutersAndTheEmbeddingMayNotBeQuantized) {
  const Qwen3MoeConfig model(sparse_model());
  for (const HfTensor& tensor : model.hf_tensors(ExpertTensors::separate)) {
    const bool is_matrix = !tensor.is_wide && tensor.hf_name.ends_with("_proj.weight");
    EXPECT_EQ(tensor.may_be_quantized, is_matrix) << tensor.hf_name;
  }
}

}  // namespace
}  // namespace tessera::models
