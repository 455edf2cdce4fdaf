// Tests Muon on CUDA: the stages of single elements have the bits of the CPU. The iterations are close to those of the
// CPU, and the bits of a matrix depend neither on the batch nor on its position.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/optimizer/matrices/muon.h"
#include "tessera/ops/optimizer/split_master.h"
#include "tests/ops/on_device.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

class OnCudaMuon : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

constexpr std::int64_t kShardSizes[] = {1, 7, 1027, 5000};
const Muon kMuon{.momentum = 0.9, .weight_decay = 0.1};

struct MuonTypes {
  at::ScalarType master, gradient, direction, momentum;
};
const std::vector<MuonTypes> kMuonTypes{{at::kFloat, at::kBFloat16, at::kBFloat16, at::kFloat},
                                        {at::kFloat, at::kFloat, at::kBFloat16, at::kBFloat16},
                                        {at::kFloat, at::kFloat, at::kFloat, at::kFloat},
                                        {at::kDouble, at::kDouble, at::kDouble, at::kDouble}};

TEST_F(OnCudaMuon, DirectionsAreTheSame) {
  for (const MuonTypes& types : kMuonTypes)
    for (const std::int64_t count : kShardSizes)
      for (const std::int64_t begin : {0, 1})
        for (const bool applies : {true, false}) {
          const at::Tensor gradient = random_tensor({count + begin}, 1, types.gradient);
          at::Tensor momentum = random_tensor({count + begin}, 2, types.momentum),
                     u = at::empty({count + begin}, types.direction).zero_();
          at::Tensor there = on_device(momentum), u_there = on_device(u);
          const at::Tensor gradient_there = on_device(gradient);
          const MuonScalars scalars = muon_scalars(kMuon, 1e-2, 3);
          const Clip clip{.factor = 0.5, .applies = applies ? 1 : 0};
          const bool is_rounded = types.momentum != types.master;
          const auto shard = [&](const at::Tensor& g, at::Tensor& m, at::Tensor& d) {
            return DirectionShard{.gradient = g.narrow(0, begin, count).const_data_ptr(),
                                  .gradient_type = to_dtype(types.gradient),
                                  .master_type = to_dtype(types.master),
                                  .plane = m.narrow(0, begin, count).mutable_data_ptr(),
                                  .direction = d.narrow(0, begin, count).mutable_data_ptr(),
                                  .direction_type = to_dtype(types.direction),
                                  .count = count,
                                  .group = 0,
                                  .indices = {.first = 5, .row = 50, .stride = 90},
                                  .rounding_key = state_rounding_key(7, "w")};
          };
          muon_directions(scalars, shard(gradient, momentum, u), clip, is_rounded);
          const at::Tensor scalars_there = object_on_device(scalars), clip_there = object_on_device(clip);
          const DirectionShard device = shard(gradient_there, there, u_there);
          base::cuda_only<cuda::muon_directions>(
              {&device, 1}, static_cast<const MuonScalars*>(scalars_there.const_data_ptr()),
              static_cast<const Clip*>(clip_there.const_data_ptr()), stream_of(there), is_rounded);
          EXPECT_TRUE(same_bits(there, momentum)) << count << " from " << begin;
          if (applies) {
            EXPECT_TRUE(same_bits(u_there, u)) << count << " from " << begin;
          }
        }
}

TEST_F(OnCudaMuon, UpdatesAreTheSame) {
  for (const MuonTypes& types : kMuonTypes)
    for (const at::ScalarType weight_type : {at::kBFloat16, types.master})
      for (const std::int64_t count : kShardSizes)
        for (const bool applies : {true, false}) {
          const at::Tensor x = random_tensor({count}, 1, types.direction);
          at::Tensor master = random_tensor({count}, 2, types.master), weight = at::empty({count}, weight_type).zero_();
          at::Tensor there = on_device(master), weight_there = on_device(weight);
          const at::Tensor x_there = on_device(x);
          const std::array scalars{muon_scalars(kMuon, 1e-1, 3), muon_scalars(kMuon, 1e-2, 3)};
          const Clip clip{.factor = 0.5, .applies = applies ? 1 : 0};
          at::Tensor amax = at::empty({1}, at::kFloat).zero_(), amax_there = on_device(amax);
          const auto shard = [&](const at::Tensor& from, at::Tensor& m, at::Tensor& w, at::Tensor& greatest) {
            UpdateShard result;
            result.master = m.mutable_data_ptr(), result.master_type = to_dtype(types.master);
            result.weight = w.mutable_data_ptr(), result.weight_type = to_dtype(weight_type);
            result.gradient = from.const_data_ptr(), result.gradient_type = to_dtype(types.direction);
            result.count = count, result.group = 1, result.factor = 2.5;
            if (types.master == at::kFloat) result.amax = greatest.mutable_data_ptr<float>();
            return result;
          };
          muon_update(scalars[1], shard(x, master, weight, amax), clip);
          const at::Tensor scalars_there = object_on_device(scalars), clip_there = object_on_device(clip);
          const UpdateShard device = shard(x_there, there, weight_there, amax_there);
          base::cuda_only<cuda::muon_update>({&device, 1},
                                             static_cast<const MuonScalars*>(scalars_there.const_data_ptr()),
                                             static_cast<const Clip*>(clip_there.const_data_ptr()), stream_of(there));
          EXPECT_TRUE(same_bits(there, master)) << count;
          EXPECT_TRUE(same_bits(weight_there, weight)) << count;
          EXPECT_TRUE(same_bits(amax_there, amax)) << count;
        }
}

TEST_F(OnCudaMuon, SplitMastersHaveTheBitsOfWholeMasters) {
  for (const std::int64_t count : kShardSizes) {
    const at::Tensor x = on_device(random_tensor({count}, 1, at::kBFloat16));
    at::Tensor master = random_tensor({count}, 2, at::kFloat);
    make_representable(master.mutable_data_ptr<float>(), count);
    at::Tensor weight = on_device(at::empty({count}, at::kBFloat16)),
               low = on_device(at::empty({count}, at::kBFloat16));
    at::Tensor whole = on_device(master), whole_weight = on_device(at::empty({count}, at::kBFloat16));
    const SplitMasters parts{static_cast<quant::bfloat16*>(weight.mutable_data_ptr()),
                             static_cast<std::uint16_t*>(low.mutable_data_ptr())};
    split_masters(whole.const_data_ptr<float>(), count, parts, stream_of(whole));
    const at::Tensor scalars = object_on_device(muon_scalars(kMuon, 1e-1, 3)), clip = object_on_device(Clip{});
    UpdateShard shard;
    shard.master = whole.mutable_data_ptr(), shard.weight = whole_weight.mutable_data_ptr();
    shard.weight_type = quant::DType::bf16;
    shard.gradient = x.const_data_ptr(), shard.gradient_type = quant::DType::bf16;
    shard.count = count, shard.factor = 2.5;
    UpdateShard split = shard;
    split.master = low.mutable_data_ptr(), split.weight = weight.mutable_data_ptr(), split.is_split = true;
    for (const UpdateShard& each : {shard, split})
      base::cuda_only<cuda::muon_update>({&each, 1}, static_cast<const MuonScalars*>(scalars.const_data_ptr()),
                                         static_cast<const Clip*>(clip.const_data_ptr()), stream_of(whole));
    at::Tensor joined = on_device(at::empty({count}, at::kFloat));
    join_masters(parts, count, joined.mutable_data_ptr<float>(), stream_of(whole));
    EXPECT_TRUE(same_bits(joined, whole)) << count;
    EXPECT_TRUE(same_bits(weight, whole_weight)) << count;
  }
}

at::Tensor iterated_on_device(const at::Tensor& u) {
  at::Tensor x = u.clone();
  MatrixBatch batch{.u = u.const_data_ptr(),
                    .x = x.mutable_data_ptr(),
                    .count = u.size(0),
                    .rows = u.size(1),
                    .cols = u.size(2),
                    .type = to_dtype(u.scalar_type())};
  // The last bytes of the tensor are not scratch and must not change.
  constexpr std::int64_t kBehind = 4096;
  const std::int64_t bytes = newton_schulz_scratch(batch);
  at::Tensor scratch = at::full({bytes + kBehind}, 0x5A, u.options().dtype(at::kByte));
  batch.scratch = static_cast<std::byte*>(scratch.mutable_data_ptr());
  newton_schulz_on_device(batch, 5, stream_of(u));
  EXPECT_TRUE(scratch.slice(0, bytes).eq(0x5A).sum().item<std::int64_t>() < bytes);
  EXPECT_TRUE(scratch.slice(0, bytes, bytes + kBehind).eq(0x5A).all().item<bool>());
  return x;
}

// Sums of products have another order than on a CPU. Five steps with coefficients up to 4.8 raise the differences of a
// rounding: by up to 2^8 in bf16, as in the comparison with torch, and by at most 2^12 in fp32 and fp64.
TEST_F(OnCudaMuon, IterationsAreCloseToThoseOfTheCpu) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 1},   {1, 37},    {37, 1},    {16, 16},   {24, 65},
                                                          {65, 24}, {128, 300}, {300, 128}, {333, 129}, {256, 256}};
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble})
    for (const auto& [rows, cols] : shapes) {
      const at::Tensor batch = random_tensor({3, rows, cols}, 11, type);
      at::Tensor host = batch.clone();
      newton_schulz({.u = batch.const_data_ptr(),
                     .x = host.mutable_data_ptr(),
                     .count = 3,
                     .rows = rows,
                     .cols = cols,
                     .type = to_dtype(type)},
                    5);
      const at::Tensor device = iterated_on_device(on_device(batch));
      const Values expected = values_of(host), got = values_of(device);
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        difference += (got[i] - expected[i]) * (got[i] - expected[i]);
        norm += expected[i] * expected[i];
      }
      const double bound = type == at::kBFloat16 ? 4e-2 : 4096 * roundoff(type);
      EXPECT_LE(std::sqrt(difference), bound * std::sqrt(norm)) << rows << " x " << cols;
      for (std::int64_t i = 0; i < 3; ++i)
        EXPECT_TRUE(same_bits(iterated_on_device(on_device(batch.narrow(0, i, 1).clone())),
                              device.narrow(0, i, 1).contiguous()))
            << rows << " x " << cols;
    }
}

// Zero matrices stay zero, and a NaN stays in its matrix.
TEST_F(OnCudaMuon, IterationsShowValuesThatAreNotFinite) {
  at::Tensor batch = random_tensor({3, 40, 24}, 11, at::kBFloat16);
  batch[0].zero_();
  batch[1][3][5].fill_(std::nan(""));
  const at::Tensor result = iterated_on_device(on_device(batch)).cpu();
  for (const double value : values_of(result.narrow(0, 0, 1).contiguous())) EXPECT_EQ(value, 0);
  for (const double value : values_of(result.narrow(0, 1, 1).contiguous())) EXPECT_TRUE(std::isnan(value));
  for (const double value : values_of(result.narrow(0, 2, 1).contiguous())) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace tessera::ops::test
