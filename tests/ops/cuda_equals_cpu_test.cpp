// Checks the results that must have the same bits on CUDA as on the CPU, and the behaviour of the CUDA kernels alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/ops/norm/rms_norm.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/formats/quantize.h"
#include "tests/ops/on_device.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kDouble};

class OnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

// Tests the elements begin, begin + 1, ..., which have another address and another tail.
at::Tensor from(const at::Tensor& tensor, std::int64_t begin) {
  return tensor.narrow(0, begin, tensor.size(0) - begin);
}

// ---- casts and initial values

TEST_F(OnCuda, CastsAreTheSame) {
  Values values = random_values(5000, 1, 3.0);
  for (std::size_t i = 0; i < 2000; ++i) values[i] *= std::exp2(static_cast<double>(i % 600) - 300);
  values[0] = std::numeric_limits<double>::infinity();
  values[1] = -0.0;
  values[2] = 1.0 + 0x1p-8 + 0x1p-40;  // rounding twice would round it to even
  for (const at::ScalarType source : kTypes)
    for (const at::ScalarType target : kTypes)
      for (const std::int64_t begin : {0, 1, 3, 8}) {
        const at::Tensor host = from(tensor_of(values, {5000}, source), begin);
        const at::Tensor device = from(on_device(tensor_of(values, {5000}, source)), begin);
        EXPECT_TRUE(same_bits(rounded_to(device, target), rounded_to(host, target))) << source << " " << target;
      }
}

TEST_F(OnCuda, SumsOfRangesAreTheSame) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const std::int64_t count : {0, 1, 4097}) {
      at::Tensor sum = random_tensor({count}, 1, type), term = random_tensor({count}, 2, type);
      at::Tensor device = on_device(sum);
      add_to(device, on_device(term));
      add_to(sum, term);
      EXPECT_TRUE(same_bits(device, sum));
    }
}

TEST_F(OnCuda, InitialValuesAreTheSame) {
  const NormalFill fill{.seed = 7,
                        .name = "model.layers.0.mlp.up_proj.weight",
                        .logical_cols = 3001,
                        .row = 5,
                        .col = 3,
                        .rows = 11,
                        .cols = 2900,
                        .stride = 2911};
  for (const at::ScalarType type : kTypes) {
    const at::Tensor host = random_tensor({11, 2911}, 1, type), device = on_device(host);
    fill_normal(fill, host.data_ptr(), to_dtype(type));
    base::cuda_only<cuda::fill_normal>(fill, device.data_ptr(), to_dtype(type), stream_of(device));
    EXPECT_TRUE(same_bits(device, host));
    at::Tensor host_range = random_tensor({777}, 1, type), range = on_device(host_range);
    fill_constant(0.1, from(host_range, 1).data_ptr(), to_dtype(type), 700);
    base::cuda_only<cuda::fill_constant>(0.1, from(range, 1).data_ptr(), to_dtype(type), 700, stream_of(range));
    EXPECT_TRUE(same_bits(range, host_range));
  }
}

// ---- operators on tokens

// fp64 uses the exp of each library, so only fp32 and bf16 are compared.
TEST_F(OnCuda, SwigluIsTheSame) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const std::int64_t features : {1, 130, 1024}) {
      const at::Tensor gate_up = random_tensor({67, 2 * features}, 1, type, 130.0);
      const at::Tensor dout = random_tensor({67, features}, 2, type);
      EXPECT_TRUE(same_bits(swiglu_forward(on_device(gate_up)), swiglu_forward(gate_up)));
      EXPECT_TRUE(same_bits(swiglu_backward(on_device(dout), on_device(gate_up)), swiglu_backward(dout, gate_up)));
      const SwigluBackward again = swiglu_backward_with_output(on_device(dout), on_device(gate_up));
      EXPECT_TRUE(same_bits(again.gradient, swiglu_backward(dout, gate_up)));
      EXPECT_TRUE(same_bits(again.out, swiglu_forward(gate_up)));
    }
}

TEST_F(OnCuda, RopeIsTheSame) {
  for (const at::ScalarType type : kTypes)
    for (const std::int64_t head_dim : {6, 128}) {
      const at::Tensor qkv = random_tensor({40, 9 * head_dim}, 1, type);
      std::vector<std::int64_t> positions;
      for (std::int64_t i = 0; i < 40; ++i) positions.push_back(i * 37 % 512);
      const RopeTable table = make_rope_table(512, head_dim, 5e5, RopeScaling{}, type);
      const RopeTable device_table{on_device(table.cosine), on_device(table.sine)};
      const at::Tensor places = ids_tensor(positions), device_places = on_device(places);
      const Qkv host = split_rope_forward(qkv, places, table, 5, 2, head_dim);
      const Qkv device = split_rope_forward(on_device(qkv), device_places, device_table, 5, 2, head_dim);
      EXPECT_TRUE(same_bits(device.q, host.q));
      EXPECT_TRUE(same_bits(device.k, host.k));
      EXPECT_TRUE(same_bits(device.v, host.v));
      EXPECT_TRUE(same_bits(split_rope_backward(device, device_places, device_table),
                            split_rope_backward(host, places, table)));
    }
}

TEST_F(OnCuda, RopeOfAnUnknownPositionIsNaN) {
  const RopeTable table = make_rope_table(4, 6, 10000.0, {}, at::kFloat, at::kCUDA);
  const Qkv parts = split_rope_forward(on_device(random_tensor({3, 18}, 1, at::kFloat)),
                                       ids_tensor({4, 3, -1}, at::kCUDA), table, 1, 1, 6);
  const Values q = values_of(parts.q);
  for (std::size_t i = 0; i < q.size(); ++i) EXPECT_EQ(std::isnan(q[i]), i / 6 != 1) << i;
}

TEST_F(OnCuda, AnInvalidTargetGivesNaN) {
  at::Tensor logits = on_device(random_tensor({2, 40}, 1, at::kFloat));
  const at::Tensor targets = ids_tensor({-2, 1}, at::kCUDA), maximum = cross_entropy_maximum(logits);
  const at::Tensor sums = cross_entropy_sums(logits, maximum, targets, one_range(0, 40));
  const Values losses = values_of(cross_entropy_finish(logits, maximum, sums, targets, one_range(0, 40), 1.0));
  EXPECT_TRUE(std::isnan(losses[0]));
  EXPECT_FALSE(std::isnan(losses[1]));
  EXPECT_TRUE(std::isnan(values_of(logits)[0]));
  EXPECT_FALSE(std::isnan(values_of(logits)[40]));
}

TEST_F(OnCuda, EmbeddingGradientsOfManyTokensAreTheSame) {
  constexpr std::int64_t count = 3000, vocabulary = 500;
  std::vector<std::int64_t> tokens;
  for (const double value : random_values(count, 1))  // small ids are frequent; some are outside the slice
    tokens.push_back(static_cast<std::int64_t>(std::pow(std::abs(value), 3) * 2 * vocabulary));
  const IdRanges part = one_range(10, vocabulary);
  for (const at::ScalarType type : kTypes)
    for (const std::int64_t hidden : {5, 264}) {
      const at::Tensor dy = random_tensor({count, hidden}, 2, type), ids = ids_tensor(tokens);
      at::Tensor host = random_tensor({vocabulary, hidden}, 3, accumulator(type)), device = on_device(host);
      for (const bool accumulate : {true, false}) {
        embedding_backward(dy, ids, host, part, accumulate);
        embedding_backward(on_device(dy), on_device(ids), device, part, accumulate);
        EXPECT_TRUE(same_bits(device, host));
      }
      const IdRanges rows = one_range(10, count);
      EXPECT_TRUE(same_bits(embedding_forward(on_device(ids), on_device(dy), rows), embedding_forward(ids, dy, rows)));
    }
}

// A part of the vocabulary has several ranges. The test compares rows, gradients, sums and losses.
TEST_F(OnCuda, EmbeddingsOfRangesAreTheSame) {
  IdRanges part;
  for (const auto& [begin, size] : {std::pair{300, 50}, {0, 7}, {40, 1}, {100, 90}}) part.add(begin, size);
  std::vector<std::int64_t> tokens;
  for (const double value : random_values(2000, 1))
    tokens.push_back(static_cast<std::int64_t>(std::pow(std::abs(value), 2) * 400));
  for (const at::ScalarType type : kTypes)
    for (const std::int64_t hidden : {5, 264}) {
      const at::Tensor table = random_tensor({part.rows(), hidden}, 4, type), ids = ids_tensor(tokens);
      EXPECT_TRUE(
          same_bits(embedding_forward(on_device(ids), on_device(table), part), embedding_forward(ids, table, part)));
      const at::Tensor dy = random_tensor({2000, hidden}, 2, type);
      at::Tensor host = random_tensor({part.rows(), hidden}, 3, accumulator(type)), device = on_device(host);
      for (const bool accumulate : {true, false}) {
        embedding_backward(dy, ids, host, part, accumulate);
        embedding_backward(on_device(dy), on_device(ids), device, part, accumulate);
        EXPECT_TRUE(same_bits(device, host));
      }
    }
}

// Sums are rounded differently from the CPU. A permutation of the columns that keeps their sums shows the mapping.
// Compares a part of several ranges with the same columns as one range, with the targets renamed.
TEST_F(OnCuda, LossesOfRangesEqualLossesOfOneRangeWithRenamedTargets) {
  IdRanges part;
  for (const auto& [begin, size] : {std::pair{300, 50}, {0, 7}, {40, 1}, {100, 90}}) part.add(begin, size);
  const IdRanges plain = one_range(0, part.rows());
  std::vector<std::int64_t> named, renamed;
  for (std::int64_t id = -1; id < 400; id += 3) {
    named.push_back(id);
    renamed.push_back(id < 0 ? -1 : part.row_of(id) < 0 ? 1000 : part.row_of(id));
  }
  const auto count = static_cast<std::int64_t>(named.size());
  for (const at::ScalarType type : kTypes) {
    at::Tensor logits = on_device(random_tensor({count, part.rows()}, 1, type, 4.0)), same = logits.clone();
    const at::Tensor targets = ids_tensor(named, at::kCUDA), others = ids_tensor(renamed, at::kCUDA);
    const at::Tensor maximum = cross_entropy_maximum(logits);
    const at::Tensor sums = cross_entropy_sums(logits, maximum, targets, part);
    EXPECT_TRUE(same_bits(sums, cross_entropy_sums(same, maximum, others, plain)));
    EXPECT_TRUE(same_bits(cross_entropy_finish(logits, maximum, sums, targets, part, 0.5),
                          cross_entropy_finish(same, maximum, sums, others, plain, 0.5)));
    EXPECT_TRUE(same_bits(logits, same));
  }
}

TEST_F(OnCuda, RepeatedGradientsOfANormAreTheSame) {
  for (const std::int64_t hidden : {72, 9000}) {
    const at::Tensor x = on_device(random_tensor({700, hidden}, 1, at::kBFloat16));
    const at::Tensor weight = on_device(random_tensor({hidden}, 2, at::kBFloat16));
    const RmsNorm norm = rms_norm_forward(x, x, weight, 1e-5);
    at::Tensor first = on_device(random_tensor({hidden}, 3, at::kFloat)), second = first.clone();
    const at::Tensor dx = rms_norm_backward(x, x, norm.sum, norm.rstd, weight, first, true);
    EXPECT_TRUE(same_bits(rms_norm_backward(x, x, norm.sum, norm.rstd, weight, second, true), dx));
    EXPECT_TRUE(same_bits(first, second));
  }
}

TEST_F(OnCuda, DropoutIsTheSame) {
  const at::Tensor step = ids_tensor({12}), same = on_device(step);
  Dropout here{.probability = 0.3, .seed = 5, .site = 7, .first_token = 19}, there = here;
  here.step = step.const_data_ptr<std::int64_t>();
  there.step = same.const_data_ptr<std::int64_t>();
  for (const at::ScalarType type : kTypes)
    for (const std::int64_t hidden : {9, 128, 9000, 40000}) {
      const at::Tensor x = random_tensor({5, hidden}, 1, type), residual = random_tensor({5, hidden}, 2, type);
      const at::Tensor weight = random_tensor({hidden}, 3, type), on_x = on_device(x), on_weight = on_device(weight);
      for (const bool has_residual : {false, true}) {
        const RmsNorm norm = rms_norm_forward(x, has_residual ? residual : at::Tensor(), weight, 1e-5, here);
        const RmsNorm other =
            rms_norm_forward(on_x, has_residual ? on_device(residual) : at::Tensor(), on_weight, 1e-5, there);
        EXPECT_TRUE(same_bits(other.sum, norm.sum)) << type << " " << hidden;
      }
      // The gradient of the sum has another order of sums. A norm whose input is this gradient drops its elements.
      const RmsNorm norm = rms_norm_forward(on_x, at::Tensor(), on_weight, 1e-5, there);
      at::Tensor dweight = on_device(random_tensor({hidden}, 4, accumulator(type)));
      const RmsNormGradients dx =
          rms_norm_backward(on_x, on_device(residual), norm.sum, norm.rstd, on_weight, dweight, false, there);
      const at::Tensor dropped = rms_norm_forward(dx.residual.cpu(), at::Tensor(), weight, 1e-5, here).sum;
      EXPECT_TRUE(same_bits(dx.x, dropped)) << type << " " << hidden;
    }
}

// The norm of a sum of parts. Statistics have another order of sums.
TEST_F(OnCuda, SumsOfPartsInANormAreTheSame) {
  for (const at::ScalarType type : kTypes)
    for (const std::int64_t hidden : {9, 128, 9000, 40000})
      for (const std::int64_t count : {2, 3, 8}) {
        std::vector<at::Tensor> parts, there;
        for (std::int64_t part = 0; part < count; ++part) {
          parts.push_back(random_tensor({5, hidden}, static_cast<std::uint64_t>(part), type, part == 1 ? 30 : 0.7));
          there.push_back(on_device(parts.back()));
        }
        const at::Tensor weight = random_tensor({hidden}, 23, type), residual = random_tensor({5, hidden}, 24, type);
        for (const bool has_residual : {false, true}) {
          const RmsNorm norm = rms_norm_forward(parts, has_residual ? residual : at::Tensor(), weight, 1e-5);
          const RmsNorm other =
              rms_norm_forward(there, has_residual ? on_device(residual) : at::Tensor(), on_device(weight), 1e-5);
          EXPECT_TRUE(same_bits(other.sum, norm.sum)) << type << " " << hidden << " " << count;
        }
      }
}

TEST_F(OnCuda, OperandsOnTwoDevicesAreRejected) {
  const at::Tensor x = random_tensor({2, 4}, 1, at::kFloat), weight = random_tensor({4}, 2, at::kFloat);
  EXPECT_THROW(rms_norm_forward(on_device(x), at::Tensor(), weight, 1e-5), Error);
  EXPECT_THROW(embedding_forward(ids_tensor({0}), on_device(x), one_range(0, x.size(0))), Error);
}

// ---- AdamW

struct Shards {
  std::vector<at::Tensor> tensors;  // these tensors own the memory of the buffers
  std::vector<UpdateShard> buffers;
};
struct ShardTypes {
  at::ScalarType master, gradient, weight;
};

// Shards of odd sizes and addresses, more than fit into one launch. Every third shard does not decay, and every fifth
// has no weight. The shards belong to two groups.
Shards shards_of(const ShardTypes& types, at::Device device) {
  Shards shards;
  const auto add = [&](std::int64_t count, std::uint64_t seed, at::ScalarType type, double scale) {
    shards.tensors.push_back(random_tensor({count + 8}, seed, at::TensorOptions(type).device(device), scale));
    return shards.tensors.back();
  };
  for (std::int64_t i = 0; i < 130; ++i) {
    const std::int64_t count = i == 7 ? 20000 : i * 37 % 211, begin = i % 3;
    const auto seed = static_cast<std::uint64_t>(4 * i);
    const auto at = [begin](const at::Tensor& tensor) { return from(tensor, begin).data_ptr(); };
    void* master = at(add(count, seed, types.master, 1));
    at::Tensor squares = add(count, seed + 1, types.master, 1).abs_();
    void* weight = at(add(count, seed + 2, types.weight, 1));
    if (i % 5 == 0) weight = i % 2 == 0 || types.weight != types.master ? nullptr : master;
    shards.buffers.push_back({.master = master,
                              .master_type = to_dtype(types.master),
                              .weight = weight,
                              .weight_type = to_dtype(types.weight),
                              .gradient = at(add(count, seed + 3, types.gradient, 2)),
                              .gradient_type = to_dtype(types.gradient),
                              .planes = {at(add(count, seed + 4, types.master, 1)), at(squares)},
                              .count = count,
                              .group = i % 3 == 0 ? 1 : 0});
  }
  return shards;
}
void expect_same(const Shards& a, const Shards& b) {
  for (std::size_t i = 0; i < a.tensors.size(); ++i) ASSERT_TRUE(same_bits(a.tensors[i], b.tensors[i])) << i;
}

// The scalars of two groups, of which the second does not decay.
using GroupScalars = std::array<StepScalars, 2>;
GroupScalars scalars_of_groups(double lr, std::int64_t step) {
  return {step_scalars({.weight_decay = 0.1}, lr, step), step_scalars({.weight_decay = 0}, 0.5 * lr, step)};
}
const StepScalars* groups_in(const at::Tensor& scalars) {
  return static_cast<const StepScalars*>(scalars.data_ptr());
}

TEST_F(OnCuda, AdamWIsTheSame) {
  for (const ShardTypes& types : {ShardTypes{at::kFloat, at::kFloat, at::kBFloat16},
                                  {at::kFloat, at::kBFloat16, at::kBFloat16},
                                  {at::kFloat, at::kFloat, at::kFloat},
                                  {at::kFloat, at::kDouble, at::kBFloat16},
                                  {at::kDouble, at::kDouble, at::kDouble},
                                  {at::kDouble, at::kBFloat16, at::kFloat}}) {
    Shards host = shards_of(types, at::kCPU), device = shards_of(types, at::kCUDA);
    const base::CudaStream stream = stream_of(device.tensors[0]);
    for (std::int64_t step = 1; step <= 3; ++step) {
      const GroupScalars groups = scalars_of_groups(/*lr=*/1e-2, step);
      const Clip factor{.factor = 0.37};
      const at::Tensor scalars = object_on_device(groups), clip = object_on_device(factor);
      for (const UpdateShard& buffers : host.buffers)
        adamw(groups.at(static_cast<std::size_t>(buffers.group)), buffers, factor);
      base::cuda_only<cuda::adamw>(device.buffers, groups_in(scalars), static_cast<const Clip*>(clip.data_ptr()),
                                   stream, /*has_bf16_moments=*/false);
    }
    expect_same(device, host);
  }
}

struct Stops {
  std::int64_t counters[kStopCounters] = {};
};

TEST_F(OnCuda, AdamWOfAnInfiniteGradientChangesNothing) {
  const ShardTypes types{at::kFloat, at::kFloat, at::kBFloat16};
  const Shards before = shards_of(types, at::kCPU), device = shards_of(types, at::kCUDA);
  const base::CudaStream stream = stream_of(device.tensors[0]);
  const at::Tensor scalars = object_on_device(scalars_of_groups(/*lr=*/1, 1)), clip = object_on_device(Clip{});
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, std::nan("")}) {
    const at::Tensor squares = on_device(tensor_of({bad}, {1}, at::kDouble)), stops = object_on_device(Stops{});
    base::cuda_only<cuda::decide_update>(squares.const_data_ptr<double>(), 1.0,
                                         static_cast<std::int64_t*>(stops.data_ptr()),
                                         static_cast<Clip*>(clip.data_ptr()), stream);
    EXPECT_EQ(object_of<Clip>(clip).applies, 0);
    base::cuda_only<cuda::adamw>(device.buffers, groups_in(scalars), static_cast<const Clip*>(clip.data_ptr()), stream,
                                 /*has_bf16_moments=*/false);
    expect_same(device, before);
  }
}

// The amaxes of the updated masters, or of the current masters if there is no update.
TEST_F(OnCuda, AdamWComputesTheSameAmaxes) {
  for (const at::ScalarType weight : {at::kBFloat16, at::kFloat}) {
    const ShardTypes types{at::kFloat, at::kFloat, weight};
    Shards host = shards_of(types, at::kCPU), device = shards_of(types, at::kCUDA);
    const auto count = static_cast<std::int64_t>(host.buffers.size());
    const GroupScalars groups = scalars_of_groups(/*lr=*/1e-2, 1);
    const at::Tensor scalars = object_on_device(groups);
    for (const bool takes_place : {true, false, true}) {
      const Clip decision{.applies = takes_place ? 1 : 0};
      const at::Tensor clip = object_on_device(decision);
      const at::Tensor expected = tensor_of(Values(host.buffers.size(), 0.125), {count}, at::kFloat);
      const at::Tensor got = on_device(expected);
      for (std::size_t i = 0; i < host.buffers.size(); ++i) {
        if (i % 4 == 3) continue;
        host.buffers[i].amax = expected.mutable_data_ptr<float>() + i;
        device.buffers[i].amax = got.mutable_data_ptr<float>() + i;
      }
      for (const UpdateShard& one : host.buffers) adamw(groups.at(static_cast<std::size_t>(one.group)), one, decision);
      base::cuda_only<cuda::adamw>(device.buffers, groups_in(scalars), static_cast<const Clip*>(clip.data_ptr()),
                                   stream_of(got), /*has_bf16_moments=*/false);
      EXPECT_TRUE(same_bits(got, expected)) << takes_place;
      expect_same(device, host);
    }
  }
}

// The host has not read whether the newest updates were applied.
TEST_F(OnCuda, AnUpdateUsesTheScalarsOfItsNumber) {
  UpdateScalars groups(one_rule(make_rule({.weight_decay = 0.1})));
  for (const UpdateGroup& group : {UpdateGroup{}, {.lr_factor = 0.5, .decay = 0}}) groups.add({.group = group});
  std::int64_t updates = 41, lowest = updates + 1;
  const at::Tensor counter = object_on_device(updates), chosen = object_on_device(GroupScalars{});
  std::deque<bool> unseen;
  double lr = 0;
  for (const bool takes_place : {true, false, false, true, true, true, false, true}) {
    lr += 1e-3;
    std::vector<std::byte> written(choices_bytes(groups.bytes()));
    groups.write_choices(lr, lowest, written.data());
    const at::Tensor choices = view_of(written.data(), {std::ssize(written)}, quant::DType::u8).to(at::kCUDA);
    const at::Tensor clip = object_on_device(Clip{.applies = takes_place ? 1 : 0});
    base::cuda_only<cuda::choose_scalars>(
        static_cast<const std::byte*>(choices.data_ptr()), groups.bytes(), static_cast<const Clip*>(clip.data_ptr()),
        static_cast<std::int64_t*>(counter.data_ptr()), static_cast<std::byte*>(chosen.data_ptr()), stream_of(counter));
    unseen.push_back(takes_place);
    if (takes_place) {
      const GroupScalars expected = scalars_of_groups(lr, ++updates), got = object_of<GroupScalars>(chosen);
      EXPECT_EQ(std::memcmp(&got, &expected, sizeof expected), 0) << "update " << updates;
    }
    EXPECT_EQ(object_of<std::int64_t>(counter), updates);
    if (unseen.size() < kScalarChoices) continue;
    if (unseen.front()) ++lowest;
    unseen.pop_front();
  }
}

TEST_F(OnCuda, ClipFactorsFollowTheNorm) {
  const at::Tensor squares = on_device(tensor_of({25.0}, {1}, at::kDouble)), clip = object_on_device(Clip{});
  const at::Tensor stops = object_on_device(Stops{});
  for (const auto& [limit, factor] : {std::pair{1.0, 1.0 / (5.0 + 1e-6)}, {10.0, 1.0}, {0.0, 1.0}}) {
    base::cuda_only<cuda::decide_update>(squares.const_data_ptr<double>(), limit,
                                         static_cast<std::int64_t*>(stops.data_ptr()),
                                         static_cast<Clip*>(clip.data_ptr()), stream_of(squares));
    const Clip got = object_of<Clip>(clip);
    EXPECT_EQ(got.norm, 5.0);
    EXPECT_EQ(got.factor, factor);
    EXPECT_EQ(got.factor, clip_factor(got.norm, limit));
    EXPECT_EQ(got.applies, 1);
  }
}

}  // namespace
}  // namespace tessera::ops::test
