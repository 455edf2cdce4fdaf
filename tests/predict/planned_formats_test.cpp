// Tests number formats in a plan. Each layer has the format of its rule, and stored and gathered bytes have the size of
// the format.
#include <gtest/gtest.h>

#include "tessera/models/architectures/llama.h"
#include "tessera/models/decoder/decoder_parameters.h"
#include "tessera/ops/work.h"
#include "tests/predict/dry_options.h"

namespace tessera::predict {
namespace {

TEST(PlannedFormats, LayersHaveTheFormatsOfTheirRules) {
  models::DecoderConfig model;
  model.vocab_size = 100, model.hidden_size = 64, model.intermediate_size = 96;
  model.num_layers = 3, model.num_heads = 4, model.num_kv_heads = 2, model.head_dim = 16;
  const shard::ParameterTypes types{.model = quant::DType::bf16};
  const shard::FormatPolicy wire{.format = quant::Format::nvfp4,
                                 .rules = {{"layers.1.*", quant::Format::mxfp8}, {"output.*", quant::Format::bf16}}};
  DryOptions options = dense_options(std::make_shared<models::LlamaConfig>(model), types, {.gtp = 2});
  const std::vector<PlannedParameter> plain = planned_parameters(dry_step(options), types);
  options.step.runtime.wire = wire;
  const std::vector<PlannedParameter> planned = planned_parameters(dry_step(options), types);
  ASSERT_EQ(planned.size(), plain.size());
  const models::DecoderIds ids = models::decoder_ids(model);
  constexpr std::int64_t kDown = 64 * 96;  // elements of the matrix `down`, of which each rank stores a half
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const auto down = static_cast<std::size_t>(ids.blocks[layer].down);
    EXPECT_EQ(planned[down].size.name, plain[down].size.name);
    EXPECT_EQ(plain[down].stored_bytes, kDown / 2 * 2);
    const std::int64_t bytes = layer == 1 ? kDown / 2 + kDown / 2 / 32 : kDown / 2 / 2 + kDown / 2 / 256;
    EXPECT_EQ(planned[down].stored_bytes, bytes) << layer;
    EXPECT_EQ(total_bytes(planned[down].size.gather), bytes) << layer;
    EXPECT_EQ(planned[down].gather_total, 2 * bytes) << layer;
  }
  for (const schedule::ParameterId id : {ids.norm, ids.output, ids.blocks[0].mlp_norm})
    EXPECT_EQ(planned[static_cast<std::size_t>(id)].stored_bytes, plain[static_cast<std::size_t>(id)].stored_bytes);
}

struct WorkOfAStep {
  double flops = 0, bytes = 0;  // of products; of the other operators
};
WorkOfAStep work_of(const DryStep& step) {
  WorkOfAStep sum;
  for (const std::vector<ops::Work>& works : step.work)
    for (const ops::Work& work : works) {
      EXPECT_EQ(work.product.format, quant::Format::bf16);  // costs have the speed of this format
      (work.kind == ops::WorkKind::product ? sum.flops : sum.bytes) +=
          work.kind == ops::WorkKind::product ? work.flops : work.bytes;
    }
  return sum;
}

// Decoded products are bf16 products. Their inputs and gradients are quantized first.
TEST(PlannedFormats, DecodedProductsHaveTheSpeedOfBf16) {
  models::DecoderConfig model;
  model.vocab_size = 100, model.hidden_size = 64, model.intermediate_size = 96;
  model.num_layers = 2, model.num_heads = 4, model.num_kv_heads = 2, model.head_dim = 16;
  const shard::ParameterTypes types{.model = quant::DType::bf16};
  DryOptions options = dense_options(std::make_shared<models::LlamaConfig>(model), types, {.gtp = 2});
  options.sequences = 16;  // the transform of nvfp4 adds no tokens
  const WorkOfAStep plain = work_of(dry_step(options));
  for (const quant::Format format : {quant::Format::mxfp8, quant::Format::nvfp4}) {
    options.step.runtime.products = {.format = format};
    const WorkOfAStep quantized = work_of(dry_step(options));
    options.step.runtime.wire = {.format = format};
    const WorkOfAStep stored = work_of(dry_step(options));
    options.step.runtime.wire = {};
    EXPECT_EQ(quantized.flops, plain.flops) << name_of(format);
    EXPECT_EQ(stored.flops, plain.flops) << name_of(format);
    EXPECT_GT(stored.bytes, plain.bytes) << name_of(format);
    // Without stored codes, fprop and dgrad also read a weight and write its decoded values.
    const double weights = 2.0 * (64 * 2 * 96 + 64 * 96 + (64 + 2 * 32) * 64 + 64 * 64) + 100 * 64;
    const double amaxes = format == quant::Format::nvfp4 ? 2 : 0;
    EXPECT_EQ(quantized.bytes - stored.bytes, 2 * weights * (2 + 2 + amaxes)) << name_of(format);
  }
}

}  // namespace
}  // namespace tessera::predict
