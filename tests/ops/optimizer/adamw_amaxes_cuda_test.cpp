// Compares the amaxes that AdamW computes on a GPU for stacks of matrices with their definition.
#include <gtest/gtest.h>

#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tests/ops/matrix_amaxes.h"
#include "tests/ops/on_device.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

// The tensors of a shard and their addresses. The shard begins at element `begin` of its tensors, so that some shards
// are not aligned.
struct StackShard {
  StackShard(std::int64_t count, std::int64_t begin, std::uint64_t seed, at::Device device) {
    const auto add = [&](at::ScalarType type, double scale) {
      tensors.push_back(random_tensor({begin + count}, seed++, at::TensorOptions(type).device(device), scale));
      return tensors.back().narrow(0, begin, count);
    };
    buffers = {.master = add(at::kFloat, 1).data_ptr(),
               .weight = add(at::kBFloat16, 1).data_ptr(),
               .weight_type = quant::DType::bf16,
               .gradient = add(at::kFloat, 2).data_ptr(),
               .planes = {add(at::kFloat, 1).data_ptr(), add(at::kFloat, 1).abs_().data_ptr()},
               .count = count};
  }
  std::vector<at::Tensor> tensors;
  UpdateShard buffers;
};

// More shards than a launch takes. Some shards are part of one matrix; others touch several matrices, in one thread
// block or in several thread blocks.
std::vector<StackShard> stack_shards(at::Device device) {
  constexpr std::int64_t kCounts[] = {0, 5, 211, 4096, 4097, 8192, 20000};
  constexpr std::int64_t kElements[] = {0, 1, 7, 64, 100, 4096, 5000, 6144, 100000};
  std::vector<StackShard> shards;
  for (std::int64_t i = 0; i < 63; ++i) {
    const std::int64_t elements = kElements[i % 9];
    shards.emplace_back(kCounts[i % 7], i % 3, static_cast<std::uint64_t>(10 * i), device);
    shards.back().buffers.amax_elements = elements;
    shards.back().buffers.amax_offset = elements == 0 || i % 5 == 0 ? 0 : i * 997 % elements;
  }
  return shards;
}

std::int64_t all_matrices(const std::vector<StackShard>& shards) {
  std::int64_t matrices = 0;
  for (const StackShard& shard : shards) matrices += touched_matrices(shard.buffers);
  return matrices;
}

TEST(AdamWAmaxesOnCuda, EqualTheDefinitionForStacks) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  std::vector<StackShard> host = stack_shards(at::kCPU), device = stack_shards(at::kCUDA);
  const StepScalars of_step = step_scalars({}, /*lr=*/1e-2, 1);
  const at::Tensor scalars = object_on_device(of_step);
  const auto matrices = static_cast<std::size_t>(all_matrices(host));
  for (const bool takes_place : {true, false, true}) {
    const at::Tensor clip = object_on_device(Clip{.applies = takes_place ? 1 : 0});
    const at::Tensor expected = tensor_of(Values(matrices, 0.125), {all_matrices(host)}, at::kFloat);
    const at::Tensor got = on_device(expected);
    std::vector<UpdateShard> launched;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < host.size(); ++i) {
      if (takes_place) adamw(of_step, host[i].buffers);
      raise_by_definition(host[i].buffers, expected.mutable_data_ptr<float>() + first);
      device[i].buffers.amax = got.mutable_data_ptr<float>() + first;
      launched.push_back(device[i].buffers);
      first += touched_matrices(host[i].buffers);
    }
    base::cuda_only<cuda::adamw>(launched, static_cast<const StepScalars*>(scalars.data_ptr()),
                                 static_cast<const Clip*>(clip.data_ptr()), stream_of(got), /*has_bf16_moments=*/false);
    EXPECT_TRUE(same_bits(got, expected)) << takes_place;
    for (std::size_t i = 0; i < host.size(); ++i)
      for (std::size_t t = 0; t < host[i].tensors.size(); ++t)
        ASSERT_TRUE(same_bits(device[i].tensors[t], host[i].tensors[t])) << "shard " << i << ", tensor " << t;
  }
}

}  // namespace
}  // namespace tessera::ops::test
