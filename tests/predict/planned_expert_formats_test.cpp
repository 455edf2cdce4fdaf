// Tests the planned bytes and messages of experts in number formats.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/layout/layout.h"
#include "tessera/models/architectures/qwen3_moe.h"
#include "tessera/schedule/events.h"
#include "tests/predict/dry_options.h"

namespace tessera::predict {
namespace {

using quant::Format;

constexpr shard::ParameterTypes kHalf{.model = quant::DType::bf16};

models::DecoderConfig model_of(std::int64_t experts) {
  models::DecoderConfig model;
  model.vocab_size = 100, model.hidden_size = 72, model.intermediate_size = 96;
  model.num_layers = 2, model.num_heads = 4, model.num_kv_heads = 2, model.head_dim = 16;
  model.experts = models::ExpertsConfig{.count = experts, .per_token = 2, .width = 44, .sparse = {true, true}};
  return model;
}

DryOptions options_of(std::int64_t experts, const nn::ExpertDegrees& degrees, Format wire) {
  const int gtp = degrees.etp * degrees.ep * degrees.egtp;
  DryOptions options = dense_options(std::make_shared<models::Qwen3MoeConfig>(model_of(experts)), kHalf,
                                     {.gtp = gtp, .experts = degrees});
  options.step.runtime.wire = {.format = wire};
  return options;
}

// The bytes and the number of the messages with amaxes of an update.
struct Messages {
  int count = 0;
  std::int64_t bytes = 0;
};
Messages messages_of(const DryStep& step) {
  Messages messages;
  for (const schedule::Event& event : step.optimizer)
    if (event.group == schedule::kCastGroup && event.op == schedule::kAmaxOp)
      ++messages.count, messages.bytes += event.bytes;
  return messages;
}

// One MAX a bucket, with 4 bytes for each matrix of its weights. The number of messages does not depend on the experts.
TEST(PlannedExpertFormats, AmaxesOfExpertsTravelInTheMessageOfTheirBucket) {
  for (const auto& [wire, has_whole] : {std::pair(Format::fp8, true), std::pair(Format::nvfp4, true),
                                        std::pair(Format::fp8_block, false), std::pair(Format::mxfp8, false)}) {
    const Messages few = messages_of(dry_step(options_of(8, {.ep = 2, .egtp = 2}, wire)));
    const Messages many = messages_of(dry_step(options_of(128, {.ep = 2, .egtp = 2}, wire)));
    EXPECT_EQ(few.count, many.count) << name_of(wire);
    EXPECT_EQ(few.count > 0, has_whole) << name_of(wire);
    if (!has_whole) continue;
    // Each layer has two dense matrices and two stacks of experts; embedding and output layer have one matrix each.
    const std::int64_t dense = 2 * 2 + 2;
    EXPECT_EQ(few.bytes, 4 * (dense + 2 * 2 * 8)) << name_of(wire);
    EXPECT_EQ(many.bytes, 4 * (dense + 2 * 2 * 128)) << name_of(wire);
  }
}

// Every expert has tiles of its own. Tiles at its edges may be short and cost one scale each.
TEST(PlannedExpertFormats, StoredBytesAreThoseOfEachExpertAlone) {
  const auto tiles = [](std::int64_t elements, std::int64_t tile) { return (elements + tile - 1) / tile; };
  for (const int egtp : {1, 2, 3, 5}) {
    const DryStep step = dry_step(options_of(7, {.egtp = egtp}, Format::nvfp4));
    const std::vector<PlannedParameter> planned = planned_parameters(step, kHalf);
    for (std::size_t id = 0; id < planned.size(); ++id) {
      const std::vector<std::int64_t>& dims = step.parameters[id].dims;
      if (dims.size() != 3) continue;
      // The largest shard has the rows of the most units of 16 rows. At most 16 rows more are in its last unit.
      const std::int64_t units = dims[0] * tiles(dims[1], 16), most = tiles(units, egtp);
      const std::int64_t scales = most * tiles(dims[2], 16);
      EXPECT_LE(planned[id].stored_bytes, most * 16 * dims[2] / 2 + scales) << planned[id].size.name;
      if (egtp > 1) continue;
      EXPECT_EQ(planned[id].stored_bytes, dims[0] * (dims[1] * dims[2] / 2 + tiles(dims[1], 16) * tiles(dims[2], 16)));
    }
  }
}

}  // namespace
}  // namespace tessera::predict
