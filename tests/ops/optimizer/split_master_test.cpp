// Tests the rule for fp32 masters of bf16 weights, and masters that are split in two parts.
#include "tessera/ops/optimizer/split_master.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/adamw_element.h"
#include "tessera/ops/optimizer/matrices/muon.h"
#include "tests/ops/on_device.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

using quant::bfloat16, quant::DType;

float master_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
std::uint32_t bits_of(float master) {
  return std::bit_cast<std::uint32_t>(master);
}

// Returns 600 high halves of masters: zeros, subnormals, ones, the greatest finite numbers, infinities, NaNs, and
// random ones.
std::vector<std::uint32_t> high_halves() {
  std::vector<std::uint32_t> halves;
  for (const std::uint32_t sign : {0U, 0x8000U})
    for (const std::uint32_t half :
         {0x0000U, 0x0001U, 0x0002U, 0x007EU, 0x007FU, 0x0080U, 0x0081U, 0x3F7FU, 0x3F80U, 0x3F81U, 0x7F7EU, 0x7F7FU,
          0x7F80U, 0x7F81U, 0x7FBFU, 0x7FC0U, 0x7FC1U, 0x7FFEU, 0x7FFFU})
      halves.push_back(sign | half);
  std::mt19937 random(23);
  while (halves.size() < 600) halves.push_back(random() & 0xFFFF);
  return halves;
}

TEST(RepresentableMaster, ChangesOnlyTiesAboveAnEvenHighHalf) {
  for (const std::uint32_t high : high_halves())
    for (std::uint32_t low = 0; low < 0x10000; ++low) {
      const float master = master_of(high << 16 | low), kept = representable(master);
      const bool is_tie = low == 0x8000 && high % 2 == 0;
      ASSERT_EQ(bits_of(kept), is_tie ? high << 16 | 0x7FFF : high << 16 | low);
      ASSERT_EQ(std::isnan(kept), std::isnan(master)) << high;
      if (std::isnan(master)) continue;
      ASSERT_EQ(bfloat16(kept).bits, bfloat16(master).bits) << high << " " << low;
    }
}

// An update with the rate 0 keeps a master, unless the master is a tie of a bf16 weight.
TEST(RepresentableMaster, IsWrittenByUpdatesOfBf16Weights) {
  const float tie = 1 + 0x1p-8F, odd = 1 + 0x3p-8F;  // above an even and above an odd high half
  for (const bool has_bf16_moments : {false, true})
    for (const DType weight_type : {DType::bf16, DType::fp32})
      for (const bool writes_weight : {false, true}) {
        constexpr std::size_t kCount = 3000;
        std::vector<float> masters(kCount, tie), gradient(kCount, 1), moments(2 * kCount);
        for (std::size_t i = 0; i < kCount; i += 3) masters[i] = odd;
        std::vector<float> weights(kCount);
        const UpdateShard shard{.master = masters.data(),
                                .weight = writes_weight ? weights.data() : nullptr,
                                .weight_type = weight_type,
                                .gradient = gradient.data(),
                                .planes = {moments.data(), moments.data() + kCount},
                                .count = kCount};
        adamw(step_scalars({}, /*lr=*/0, 1), shard, {}, has_bf16_moments);
        for (std::size_t i = 0; i < kCount; ++i) {
          const float before = i % 3 == 0 ? odd : tie;
          ASSERT_EQ(masters[i], weight_type == DType::bf16 ? representable(before) : before) << i;
          if (!writes_weight) continue;
          if (weight_type == DType::fp32) {
            ASSERT_EQ(weights[i], before);
          } else {
            bfloat16 weight;
            std::memcpy(&weight, reinterpret_cast<const std::byte*>(weights.data()) + 2 * i, sizeof weight);
            ASSERT_EQ(weight.bits, bfloat16(before).bits) << i;
          }
        }
      }
}

// ---- split masters

TEST(SplitMaster, EveryMasterThatFollowsTheRuleSurvives) {
  for (const std::uint32_t high : high_halves())
    for (std::uint32_t low = 0; low < 0x10000; ++low) {
      const float master = representable(master_of(high << 16 | low));
      const float joined = joined_master(bfloat16(master), low_half(master));
      if (std::isnan(master)) {
        ASSERT_TRUE(std::isnan(joined)) << high << " " << low;
      } else {
        ASSERT_EQ(bits_of(joined), bits_of(master)) << high << " " << low;
      }
    }
}

TEST(SplitMaster, ArraysHaveTheBitsOfSingleMasters) {
  std::mt19937 random(5);
  for (const std::int64_t count : {0, 1, 7, 1000}) {
    std::vector<float> masters(static_cast<std::size_t>(count)), joined(masters.size());
    for (float& master : masters) master = master_of((random() & 0xBFFFFFFF) | (random() % 4 == 0 ? 0x8000 : 0));
    std::vector<bfloat16> weights(masters.size());
    std::vector<std::uint16_t> low_halves(masters.size());
    const SplitMasters parts{.weights = weights.data(), .low_halves = low_halves.data()};
    make_representable(masters.data(), count);
    split_masters(masters.data(), count, parts);
    join_masters(parts, count, joined.data());
    EXPECT_EQ(joined, masters);
    for (std::size_t i = 0; i < masters.size(); ++i) EXPECT_EQ(weights[i].bits, bfloat16(masters[i]).bits);
  }
}

// A shard in memory of its own, whose masters are split or not.
struct OwnShard {
  std::vector<float> masters, gradient, moments;
  std::vector<bfloat16> weights, short_moments;
  std::vector<std::uint16_t> low_halves;

  explicit OwnShard(std::int64_t count) : masters(static_cast<std::size_t>(count)), gradient(masters.size()) {
    moments.resize(2 * masters.size());
    short_moments.resize(2 * masters.size());
    weights.resize(masters.size());
    low_halves.resize(masters.size());
  }
  UpdateShard shard(bool is_split, bool has_bf16_moments) {
    const auto count = static_cast<std::ptrdiff_t>(masters.size());
    UpdateShard shard{.master = masters.data(),
                      .weight = weights.data(),
                      .weight_type = DType::bf16,
                      .is_split = is_split,
                      .gradient = gradient.data(),
                      .planes = {moments.data(), moments.data() + count},
                      .count = count,
                      .rounding_key = state_rounding_key(3, "w")};
    if (is_split) shard.master = low_halves.data();
    if (has_bf16_moments) shard.planes = {short_moments.data(), short_moments.data() + count};
    return shard;
  }
  SplitMasters parts() { return {.weights = weights.data(), .low_halves = low_halves.data()}; }
};

// Moves every second master so that this update makes it a tie. `shard` holds the state before the update.
std::int64_t place_before_ties(const StepScalars& of_step, OwnShard& shard, std::mt19937& random) {
  const TypedScalars<float> scalars(of_step, 1);
  std::int64_t ties = 0;
  const std::size_t count = shard.masters.size();
  for (std::size_t i = 0; i < count; i += 2) {
    const auto after = [&](float master) {
      return updated(scalars, {master, shard.moments[i], shard.moments[count + i]}, shard.gradient[i]).master;
    };
    const float tie = master_of((random() & 0x807FFFFF & ~0x1FFFFU) | 0x3F800000 | 0x8000);
    const float start = representable(tie - after(0));
    if (bits_of(after(start)) != bits_of(tie)) continue;
    shard.masters[i] = start;
    ++ties;
  }
  return ties;
}

TEST(SplitMaster, UpdatesHaveTheBitsOfWholeMastersOver200StepsWithTies) {
  for (const bool has_bf16_moments : {false, true}) {
    OwnShard whole(2050), split(2050);
    std::mt19937 random(7);
    std::int64_t ties = 0;
    for (std::int64_t step = 1; step <= 200; ++step) {
      const StepScalars scalars = step_scalars({}, /*lr=*/1e-3, step);
      for (float& g : whole.gradient) g = static_cast<float>(static_cast<double>(random()) * 0x1p-31 - 1);
      split.gradient = whole.gradient;
      if (!has_bf16_moments) ties += place_before_ties(scalars, whole, random);
      split_masters(whole.masters.data(), 2050, split.parts());
      adamw(scalars, whole.shard(false, has_bf16_moments), {}, has_bf16_moments);
      adamw(scalars, split.shard(true, has_bf16_moments), {}, has_bf16_moments);
      join_masters(split.parts(), 2050, split.masters.data());
      ASSERT_EQ(split.masters, whole.masters) << step;
      ASSERT_EQ(std::memcmp(split.weights.data(), whole.weights.data(), 2 * split.weights.size()), 0) << step;
      ASSERT_EQ(split.moments, whole.moments) << step;
      ASSERT_EQ(std::memcmp(split.short_moments.data(), whole.short_moments.data(), 4 * split.weights.size()), 0);
    }
    if (!has_bf16_moments) EXPECT_GT(ties, 50000);
  }
}

// The update makes each master of an even index a tie.
TEST(SplitMaster, UpdatesOfMuonHaveTheBitsOfWholeMasters) {
  constexpr std::int64_t kCount = 2050;
  OwnShard whole(kCount), split(kCount);
  std::mt19937 random(7);
  for (std::int64_t step = 1; step <= 4; ++step) {
    for (std::size_t i = 0; i < whole.masters.size(); ++i) {
      const bool is_tie = i % 2 == 0;
      const float even = master_of((random() & 0x807E0000) | 0x3F800000);
      if (is_tie) whole.masters[i] = even;
      whole.gradient[i] =
          is_tie ? std::copysign(0x1p-8F, -even) : static_cast<float>(static_cast<double>(random()) * 0x1p-31 - 1);
    }
    split.gradient = whole.gradient;
    split_masters(whole.masters.data(), kCount, split.parts());
    const OwnShard before = split;
    const ops::Clip clip{.applies = step < 4 ? 1 : 0};
    muon_update(muon_scalars({}, /*lr=*/1, step), whole.shard(false, false), clip);
    muon_update(muon_scalars({}, /*lr=*/1, step), split.shard(true, false), clip);
    join_masters(split.parts(), kCount, split.masters.data());
    ASSERT_EQ(split.masters, whole.masters) << step;
    for (std::size_t i = 0; i < whole.masters.size(); i += 2)
      ASSERT_EQ(bits_of(whole.masters[i]) & 0xFFFF, step < 4 ? 0x7FFFU : 0U) << step << " " << i;
    const std::vector<bfloat16>& weights = step < 4 ? whole.weights : before.weights;
    ASSERT_EQ(std::memcmp(split.weights.data(), weights.data(), 2 * weights.size()), 0) << step;
  }
}

TEST(SplitMaster, ASuppressedUpdateChangesNoByte) {
  OwnShard shard(100);
  std::mt19937 random(11);
  for (float& master : shard.masters) master = representable(master_of(random() & 0xBFFFFFFF));
  split_masters(shard.masters.data(), 100, shard.parts());
  shard.gradient.assign(100, 1);
  const OwnShard before = shard;
  adamw(step_scalars({}, 1, 1), shard.shard(true, false), {.applies = 0});
  EXPECT_EQ(shard.low_halves, before.low_halves);
  EXPECT_EQ(std::memcmp(shard.weights.data(), before.weights.data(), 200), 0);
  EXPECT_EQ(shard.moments, before.moments);
}

TEST(SplitMaster, ShardsWhoseWeightIsNoPartAreRejected) {
  OwnShard own(4);
  float amax = 0;
  const auto is_refused = [&](auto change) {
    UpdateShard shard = own.shard(true, false);
    change(shard);
    EXPECT_THROW(check_shard(shard, 2), Error);
  };
  EXPECT_NO_THROW(check_shard(own.shard(true, false), 2));
  is_refused([](UpdateShard& shard) { shard.weight = nullptr; });
  is_refused([](UpdateShard& shard) { shard.weight_type = DType::fp32; });
  is_refused([](UpdateShard& shard) { shard.master_type = DType::fp64; });
  is_refused([&](UpdateShard& shard) { shard.amax = &amax; });
}

// ---- GPU

// Masters of all kinds, with ties, at aligned and at other addresses.
TEST(OnCudaMasters, HaveTheBitsOfTheHost) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  std::mt19937 random(13);
  std::vector<float> masters(70001);
  for (float& master : masters)
    master = master_of((random() & 0xFFFF0000) | (random() % 3 == 0 ? 0x8000 : random() & 0xFFFF));
  for (float& master : masters)
    if (std::isnan(master)) master = 1;
  const auto count = static_cast<std::int64_t>(masters.size());
  const at::Tensor device = on_device(view_of(masters.data(), {count}, DType::fp32)),
                   weights = on_device(at::zeros({count}, at::kBFloat16)),
                   lows = on_device(at::zeros({count}, at::kBFloat16)), joined = at::zeros_like(device);
  const SplitMasters parts{.weights = static_cast<bfloat16*>(weights.data_ptr()),
                           .low_halves = static_cast<std::uint16_t*>(lows.data_ptr())};
  make_representable(device.mutable_data_ptr<float>(), count, stream_of(device));
  split_masters(device.const_data_ptr<float>(), count, parts, stream_of(device));
  join_masters(parts, count, joined.mutable_data_ptr<float>(), stream_of(device));
  make_representable(masters.data(), count);
  const at::Tensor expected = view_of(masters.data(), {count}, DType::fp32);
  EXPECT_TRUE(same_bits(device, expected));
  EXPECT_TRUE(same_bits(joined, expected));
  EXPECT_TRUE(same_bits(weights, rounded_to(expected, at::kBFloat16)));
}

TEST(OnCudaMasters, UpdatesOfSplitMastersHaveTheBitsOfTheHost) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
      if (gradient == at::kDouble && moments == at::kBFloat16) continue;
      std::vector<UpdateShard> host, device;
      std::vector<std::pair<at::Tensor, at::Tensor>> tensors;
      std::uint64_t seed = 1;
      const auto rule = make_rule({.weight_decay = 0.1, .has_bf16_moments = moments == at::kBFloat16});
      for (const std::int64_t count : {1, 6, 4096, 10000, 30001})
        for (const std::int64_t begin : {0, 1, 4}) {
          UpdateShard shard{.weight_type = DType::bf16,
                            .is_split = true,
                            .gradient_type = to_dtype(gradient),
                            .count = count,
                            .rounding_key = state_rounding_key(seed, "w")};
          UpdateShard on_gpu = shard;
          const auto add = [&](const at::Tensor& values) {
            tensors.emplace_back(values, on_device(values));
            const auto offset = static_cast<std::size_t>(begin) * values.element_size();
            return std::pair{
                static_cast<void*>(static_cast<std::byte*>(tensors.back().first.mutable_data_ptr()) + offset),
                static_cast<void*>(static_cast<std::byte*>(tensors.back().second.mutable_data_ptr()) + offset)};
          };
          const std::int64_t size = begin + count;
          at::Tensor masters = random_tensor({size}, seed++, at::kFloat), lows = at::zeros({size}, at::kBFloat16);
          at::Tensor weights = at::zeros({size}, at::kBFloat16);
          make_representable(masters.mutable_data_ptr<float>(), size);
          split_masters(masters.const_data_ptr<float>(), size,
                        {.weights = static_cast<bfloat16*>(weights.data_ptr()),
                         .low_halves = static_cast<std::uint16_t*>(lows.data_ptr())});
          std::tie(shard.master, on_gpu.master) = add(lows);
          std::tie(shard.weight, on_gpu.weight) = add(weights);
          std::tie(shard.gradient, on_gpu.gradient) = add(random_tensor({size}, seed++, gradient));
          std::tie(shard.planes[0], on_gpu.planes[0]) = add(random_tensor({size}, seed++, moments));
          std::tie(shard.planes[1], on_gpu.planes[1]) = add(random_tensor({size}, seed++, moments).abs());
          host.push_back(shard), device.push_back(on_gpu);
        }
      for (const bool applies : {true, false, true}) {
        const Clip clip{.factor = 0.7, .applies = applies ? 1 : 0};
        const StepScalars of_step = step_scalars({.weight_decay = 0.1}, 0.01, 3);
        std::vector<std::byte> scalars(sizeof of_step);
        std::memcpy(scalars.data(), &of_step, sizeof of_step);
        const at::Tensor on_gpu = object_on_device(of_step), factor = object_on_device(clip);
        rule->update(host, scalars.data(), &clip, {});
        rule->update(device, static_cast<const std::byte*>(on_gpu.data_ptr()),
                     static_cast<const Clip*>(factor.data_ptr()), stream_of(on_gpu));
        for (const auto& [on_host, on_card] : tensors) ASSERT_TRUE(same_bits(on_card, on_host));
      }
    }
}

}  // namespace
}  // namespace tessera::ops::test
