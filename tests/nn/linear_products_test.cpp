// Tests the factors of products in number formats on tp ranks that hold parts of one matrix.
#include "tessera/nn/layers/linear_products.h"

#include "tessera/runtime/runtime.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"

namespace tessera::nn {
namespace {

using quant::Format;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Calls use(pass, weight) inside a microbatch of a step on each of two tp ranks.
void on_two_ranks(Format product, DelayedScales* (*scales_of)(Context& context),
                  const std::function<void(const PassState& pass, const Weight& weight)>& use) {
  comm::run_local(2, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel =
        shard::make_parallel_groups(world, nn::rank_layout({.tp = 2}), /*with_casts=*/true);
    runtime::Runtime runtime(parallel, {.model = quant::DType::bf16});
    const schedule::ParameterId id = runtime.parameters().add(
        {.name = "weight", .dims = {32, 16}, .compute = layout::cut_rows({32, 16}, {{"all", 32}}, 2)});
    Context context{.program = runtime.program(), .sequence_parallel = true};
    context.scales = scales_of(context);
    Weight weight{.id = id, .rows = 16, .cols = 16, .product = product};
    add_scales(context, weight);
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    use({.context = context, .id = {0}}, weight);
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
  });
}

// Each rank's part is constant: 1 on the first rank, 4 on the second.
at::Tensor part_of(const Context& context) {
  return at::full({16, 16}, context.tp_rank() == 0 ? 1.0 : 4.0, at::TensorOptions(at::kBFloat16));
}

std::size_t messages(const Context& context) {
  const schedule::Trace& trace = static_cast<const runtime::RunningProgram&>(context.program).trace();
  return static_cast<std::size_t>(
      std::ranges::count(trace, schedule::EventKind::comm, [](const schedule::Event& event) { return event.kind; }));
}

// If the first rank used its own amax, 1/3 of the largest E4M3 number would have another code.
TEST(Factors, ColumnsOfOneMatrixShareAScale) {
  on_two_ranks(
      Format::fp8, [](Context&) -> DelayedScales* { return nullptr; },
      [](const PassState& pass, const Weight& weight) {
        at::Tensor part = part_of(pass.context);
        part[0][0] = 0.3;
        const Factor factor = factor_of_columns(pass, weight, OperandKind::input, part, ops::Sides::rows);
        const quant::Encoding encoding = quant::input_encoding(Format::fp8);
        const ops::WholeScale shared = ops::whole_scale(encoding, at::full({1}, 4.0, at::kFloat));
        const at::Tensor expected = ops::quantize(part, encoding, ops::Sides::rows, shared).rows.values;
        EXPECT_TRUE(factor.operands.rows.values.equal(expected));
        EXPECT_EQ(messages(pass.context), 1u);
      });
}

// In the first step, matrices use their own amaxes, which the ranks reduce. No later step sends such a message.
TEST(Factors, TheFirstStepOfDelayedScalingRecordsNoEvent) {
  static thread_local std::unique_ptr<DelayedScales> scales;
  on_two_ranks(
      Format::fp8,
      [](Context& context) {
        scales = std::make_unique<DelayedScales>(context.products, base::Device{});
        return scales.get();
      },
      [](const PassState& pass, const Weight& weight) {
        const Factor factor = factor_of_columns(pass.in(schedule::Pass::backward), weight, OperandKind::gradient,
                                                part_of(pass.context), ops::Sides::rows);
        EXPECT_EQ(messages(pass.context), 0u);
        EXPECT_EQ(scales->found()[static_cast<std::size_t>(weight.gradient_scale)],
                  pass.context.tp_rank() == 0 ? 1 : 4);
        EXPECT_EQ(factor.operands.rows.values[0][0].item<float>(), pass.context.tp_rank() == 0 ? 1 : 4);
      });
}

// A GPU stores the columns as codes and scales. A CPU stores values, so it has no address of the codes.
TEST(StashItems, OfColumnsAreTheStoredCodesAndScales) {
  std::vector<at::Device> devices{at::kCPU};
  if (base::cuda_device_count() > 0) devices.emplace_back(at::kCUDA);
  for (const at::Device device : devices)
    for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
      SCOPED_TRACE(quant::name_of(format));
      const quant::Encoding encoding = quant::input_encoding(format);
      const at::Tensor matrix = at::full({48, 160}, 3.0, at::TensorOptions(at::kBFloat16).device(device));
      const ops::WholeScale whole = ops::whole_scale(encoding, ops::amax_of(matrix));
      const Factor factor{.matrix = {}, .operands = ops::quantize(matrix, encoding, ops::Sides::kept, whole)};
      const ops::Operand& columns = factor.operands.columns;
      const std::vector<runtime::StashItem> items = with_columns({matrix}, factor);
      ASSERT_GE(items.size(), 2U);
      EXPECT_EQ(items[0].data, matrix.const_data_ptr());
      std::int64_t bytes = 0;
      for (std::size_t i = 1; i < items.size(); ++i) bytes += items[i].bytes;
      EXPECT_EQ(bytes, ops::stored_bytes(columns.extent, columns.encoding));
      if (device.is_cpu()) {
        EXPECT_EQ(items[1].data, nullptr);
        continue;
      }
      EXPECT_EQ(items[1].data, columns.codes.const_data_ptr());
      EXPECT_EQ(items[1].bytes, static_cast<std::int64_t>(columns.codes.nbytes()));
      if (has_one_scale(encoding)) continue;  // the scale of the matrix is not counted
      ASSERT_EQ(items.size(), 3U);
      EXPECT_EQ(items[2].data, columns.scales.const_data_ptr());
      EXPECT_EQ(items[2].bytes, static_cast<std::int64_t>(columns.scales.nbytes()));
    }
}

TEST(DelayedScales, ContinueFromTheirState) {
  const ProductOptions options{.history = 3};
  DelayedScales first(options, {}), second(options, {});
  for (DelayedScales* scales : {&first, &second}) scales->add("a", quant::Element::e4m3);
  EXPECT_FALSE(first.are_known());
  const auto lane = base::make_inline_lane();
  *first.amax(0) = 7;
  first.update(nullptr, nullptr);
  first.set_known();
  second.set_state(first.state(*lane), *lane);
  EXPECT_TRUE(second.are_known());
  EXPECT_EQ(second.state(*lane), first.state(*lane));
  EXPECT_EQ(second.scale(0).multiplier.item<float>(), 64);
  EXPECT_EQ(second.scale(0).inverse.item<float>(), 1.0F / 64);
  EXPECT_THAT([&] { second.set_state(std::vector<float>(5), *lane); },
              ThrowsMessage<InputError>(HasSubstr("got a state of 5 numbers, expected 4")));
  for (const float bad : {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (std::size_t at = 0; at < 4; ++at) {
      std::vector<float> state = first.state(*lane);
      state[at] = bad;
      EXPECT_THAT([&] { second.set_state(state, *lane); },
                  ThrowsMessage<InputError>(HasSubstr(at < 3 ? "got an amax of " : "got a multiplier of ")))
          << at;
    }
  std::vector<float> zero = first.state(*lane);
  zero.back() = 0;
  EXPECT_THAT([&] { second.set_state(zero, *lane); },
              ThrowsMessage<InputError>(HasSubstr("got a multiplier of 0, expected a positive finite one")));
}

}  // namespace
}  // namespace tessera::nn
