// Tests elementwise functions on flat ranges (exp, casts, AdamW), and sums of squares of rows.
#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>
#include <torch/headeronly/util/Float8_e4m3fn.h>
#include <torch/headeronly/util/Float8_e5m2.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/exponential.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/quant/formats/encoding.h"
#include "tests/ops/matrix_amaxes.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

using quant::DType;

// ---- casts

// For finite values within the range of the type, quant and torch's casts give the same fp8 codes. For greater values
// torch gives NaN or infinity, and quant gives the greatest number.
TEST(TorchCasts, OfFp8GiveTheSameCodes) {
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 257) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::fabs(value) <= 448) {
      ASSERT_EQ(quant::E4M3::encode(value), c10::detail::fp8e4m3fn_from_fp32_value(value)) << std::hexfloat << value;
    }
    if (std::fabs(value) <= 57344) {
      ASSERT_EQ(quant::E5M2::encode(value), c10::detail::fp8e5m2_from_fp32_value(value)) << std::hexfloat << value;
    }
  }
}

// ---- exp

TEST(Exponential, IsWithinElevenTenthsOfAUnit) {
  double worst = 0;
  const auto check = [&worst](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits), got = exponential(x);
    const double exact = std::exp(static_cast<double>(x));
    const float near = static_cast<float>(exact);
    if (!(near > 1.2e-38f) || std::isinf(near)) return;
    const double unit = static_cast<double>(std::nextafter(near, HUGE_VALF)) - static_cast<double>(near);
    worst = std::max(worst, std::abs(static_cast<double>(got) - exact) / unit);
  };
  for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(88.8f); bits += 257) {
    check(bits);
    check(bits | 0x80000000u);
  }
  EXPECT_LT(worst, 1.1);
  RecordProperty("worst_units", std::to_string(worst));
}

TEST(Exponential, OrdinaryIsTheSame) {
  for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(kOrdinaryExponent); bits += 257)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(bits | sign);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(ordinary_exponential(x)), std::bit_cast<std::uint32_t>(exponential(x)))
          << x;
    }
}

TEST(Exponential, HasTheCorrectLimits) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exponential(0.0f), 1.0f);
  EXPECT_EQ(exponential(-0.0f), 1.0f);
  EXPECT_EQ(exponential(-infinity), 0.0f);
  EXPECT_EQ(exponential(-1000.0f), 0.0f);
  EXPECT_EQ(exponential(infinity), infinity);
  EXPECT_EQ(exponential(88.8f), infinity);
  EXPECT_TRUE(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
  // Below the smallest normal number the two halves of 2^n underflow gradually: the error is at most two of the
  // smallest steps.
  EXPECT_NEAR(exponential(-95.0f), std::exp(-95.0), 2 * 1.4013e-45);
  EXPECT_NEAR(exponential(-103.0f), std::exp(-103.0), 2 * 1.4013e-45);
}

// ---- AdamW

struct State {
  at::Tensor master, weight, exp_avg, exp_avg_sq;
};
struct Types {
  at::ScalarType master, gradient, weight;
};
State initial_state(std::int64_t count, const Types& types) {
  const at::Tensor zeros = tensor_of(Values(static_cast<std::size_t>(count)), {count}, types.master);
  return {.master = random_tensor({count}, 1, types.master),
          .weight = random_tensor({count}, 2, types.weight),
          .exp_avg = zeros.clone(),
          .exp_avg_sq = zeros.clone()};
}
at::Tensor gradient_of(std::int64_t count, std::int64_t step, at::ScalarType type) {
  Values values = random_values(count, static_cast<std::uint64_t>(100 + step), 0.5);
  for (double& value : values) value += value < 0 ? -0.5 : 0.5;  // magnitudes in [0.5, 1), away from 0
  return tensor_of(values, {count}, type);
}
constexpr double kRate = 1e-2;
constexpr AdamW kOptions{.weight_decay = 0.1};
StepScalars scalars_at(std::int64_t number) {
  return step_scalars(kOptions, kRate, number);
}
void step(std::int64_t number, State& state, const at::Tensor& gradient, std::int64_t begin, std::int64_t count,
          double scale = 1) {
  const auto at = [begin](const at::Tensor& tensor) {
    return tensor.narrow(0, begin, tensor.size(0) - begin).data_ptr();
  };
  adamw(scalars_at(number),
        {.master = at(state.master),
         .master_type = to_dtype(state.master.scalar_type()),
         .weight = at(state.weight),
         .weight_type = to_dtype(state.weight.scalar_type()),
         .gradient = at(gradient),
         .gradient_type = to_dtype(gradient.scalar_type()),
         .planes = {at(state.exp_avg), at(state.exp_avg_sq)},
         .count = count},
        {.factor = scale});
}

class AdamWTypes : public testing::TestWithParam<Types> {};
INSTANTIATE_TEST_SUITE_P(Types, AdamWTypes,
                         testing::Values(Types{at::kFloat, at::kFloat, at::kFloat},
                                         Types{at::kFloat, at::kBFloat16, at::kBFloat16},
                                         Types{at::kFloat, at::kFloat, at::kBFloat16},
                                         Types{at::kDouble, at::kDouble, at::kDouble},
                                         Types{at::kDouble, at::kFloat, at::kBFloat16}));

// In one step, the weight has an error of 4u from its own operations, plus the learning rate times the error of the
// ratio m / sqrt(v). For gradients in [0.5, 1), the ratio is near 1. The moments are at most 1, so each step adds at
// most 4u to their errors, and errors of earlier steps carry over. The total error of the ratio is below 32u.
TEST_P(AdamWTypes, TwentyStepsFollowTheFormula) {
  constexpr std::int64_t numel = 1500;  // more than one chunk
  State state = initial_state(numel, GetParam());
  Values w = values_of(state.master), m(numel), v(numel);
  for (std::int64_t s = 1; s <= 20; ++s) {
    const at::Tensor gradient = gradient_of(numel, s, GetParam().gradient);
    step(s, state, gradient, 0, numel, 0.5);
    const Values g = values_of(gradient);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double scaled = 0.5 * g[i];
      w[i] *= 1 - kRate * kOptions.weight_decay;
      m[i] = kOptions.beta1 * m[i] + (1 - kOptions.beta1) * scaled;
      v[i] = kOptions.beta2 * v[i] + (1 - kOptions.beta2) * scaled * scaled;
      const double m_hat = m[i] / (1 - std::pow(kOptions.beta1, s)), v_hat = v[i] / (1 - std::pow(kOptions.beta2, s));
      w[i] -= kRate * m_hat / (std::sqrt(v_hat) + kOptions.eps);
    }
  }
  const double u = roundoff(GetParam().master);
  expect_near(values_of(state.exp_avg), m, [&](std::size_t) { return 20 * 4 * u; });
  expect_near(values_of(state.exp_avg_sq), v, [&](std::size_t) { return 20 * 4 * u; });
  expect_near(values_of(state.master), w,
              [&](std::size_t i) { return 20 * (4 * u * (std::abs(w[i]) + 0.2) + 1e-2 * 32 * u); });
  EXPECT_TRUE(same_bits(state.weight, tensor_of(values_of(state.master), {numel}, GetParam().weight)));
}

TEST(AdamW, AgreesWithTorch) {
  constexpr std::int64_t numel = 300;
  State state = initial_state(numel, {at::kDouble, at::kDouble, at::kDouble});
  const auto aside = [](const at::Tensor& tensor) { return std::vector<at::Tensor>{tensor.clone()}; };
  std::vector<at::Tensor> w = aside(state.master), m = aside(state.exp_avg), v = aside(state.exp_avg_sq);
  for (std::int64_t s = 1; s <= 20; ++s) {
    const at::Tensor gradient = gradient_of(numel, s, at::kDouble);
    step(s, state, gradient, 0, numel);
    const std::vector<at::Tensor> g{gradient.clone()}, steps{tensor_of({static_cast<double>(s)}, {}, at::kFloat)};
    at::_fused_adamw_(w, g, m, v, {}, steps, kRate, kOptions.beta1, kOptions.beta2, kOptions.weight_decay, kOptions.eps,
                      false, false);
  }
  // Torch stores the step in fp32, and in some builds powers of beta in fp32 too. The relative error of 1e-7 changes
  // an update of 1e-2 by 1e-9. The moments do not depend on the step or on powers of beta, so their bound is smaller.
  expect_near(values_of(state.exp_avg), values_of(m[0]), [](std::size_t) { return 1e-14; });
  expect_near(values_of(state.exp_avg_sq), values_of(v[0]), [](std::size_t) { return 1e-14; });
  expect_near(values_of(state.master), values_of(w[0]), [](std::size_t) { return 20 * 1e-9; });
}

TEST(AdamW, ChoicesAreTheScalarsOfTheNextUpdates) {
  UpdateScalars groups(one_rule(make_rule(kOptions)));
  EXPECT_EQ(groups.add({}), 0);
  std::vector<std::byte> choices(choices_bytes(groups.bytes()));
  ASSERT_EQ(choices.size(), sizeof(std::int64_t) + kScalarChoices * sizeof(StepScalars));
  groups.write_choices(kRate, 1000, choices.data());
  std::int64_t lowest = 0;
  std::memcpy(&lowest, choices.data(), sizeof lowest);
  EXPECT_EQ(lowest, 1000);
  for (int i = 0; i < kScalarChoices; ++i) {
    const StepScalars expected = scalars_at(1000 + i);
    EXPECT_EQ(std::memcmp(choices.data() + sizeof lowest + i * sizeof expected, &expected, sizeof expected), 0) << i;
  }
}

// A suppressed update keeps every value, and its amaxes are those of the masters.
TEST(AdamW, ASuppressedUpdateChangesOnlyAmaxes) {
  State state = initial_state(50, {at::kFloat, at::kFloat, at::kBFloat16}), before = state;
  for (at::Tensor* tensor : {&before.master, &before.weight, &before.exp_avg, &before.exp_avg_sq})
    *tensor = tensor->clone();
  const at::Tensor gradient = gradient_of(50, 1, at::kFloat);
  float amax = 0;
  const UpdateShard shard{.master = state.master.data_ptr(),
                          .weight = state.weight.data_ptr(),
                          .weight_type = DType::bf16,
                          .gradient = gradient.data_ptr(),
                          .planes = {state.exp_avg.data_ptr(), state.exp_avg_sq.data_ptr()},
                          .count = 50,
                          .amax = &amax};
  const StepScalars scalars = scalars_at(1);
  const Clip clip{.applies = 0};
  make_rule(kOptions)->update({&shard, 1}, reinterpret_cast<const std::byte*>(&scalars), &clip, nullptr);
  EXPECT_TRUE(same_bits(state.master, before.master));
  EXPECT_TRUE(same_bits(state.weight, before.weight));
  EXPECT_TRUE(same_bits(state.exp_avg, before.exp_avg));
  EXPECT_TRUE(same_bits(state.exp_avg_sq, before.exp_avg_sq));
  float expected = 0;
  test::raise_by_definition(shard, &expected);
  EXPECT_EQ(amax, expected);
}

TEST_P(AdamWTypes, DoesNotDependOnTheDivisionOfTheRange) {
  constexpr std::int64_t numel = 2100;
  State whole = initial_state(numel, GetParam()), cut = initial_state(numel, GetParam());
  for (std::int64_t s = 1; s <= 3; ++s) {
    const at::Tensor gradient = gradient_of(numel, s, GetParam().gradient);
    step(s, whole, gradient, 0, numel);
    std::int64_t begin = 0;
    for (const std::int64_t count : {1L, 7L, 0L, 16L, 3L, 1024L, 33L, 1016L}) {
      step(s, cut, gradient, begin, count);
      begin += count;
    }
    ASSERT_EQ(begin, numel);
  }
  EXPECT_TRUE(same_bits(whole.master, cut.master));
  EXPECT_TRUE(same_bits(whole.weight, cut.weight));
  EXPECT_TRUE(same_bits(whole.exp_avg, cut.exp_avg));
  EXPECT_TRUE(same_bits(whole.exp_avg_sq, cut.exp_avg_sq));
}

TEST(AdamW, WritesNoWeightIfItIsNullOrTheMaster) {
  State a = initial_state(50, {at::kFloat, at::kFloat, at::kFloat}),
        b = initial_state(50, {at::kFloat, at::kFloat, at::kFloat});
  const at::Tensor gradient = gradient_of(50, 1, at::kFloat), untouched = b.weight.clone();
  const auto update = [&](State& state, void* weight) {
    adamw(scalars_at(1), {.master = state.master.data_ptr(),
                          .weight = weight,
                          .gradient = gradient.data_ptr(),
                          .planes = {state.exp_avg.data_ptr(), state.exp_avg_sq.data_ptr()},
                          .count = 50});
  };
  update(a, a.master.data_ptr());
  update(b, nullptr);
  EXPECT_TRUE(same_bits(a.master, b.master));
  EXPECT_TRUE(same_bits(b.weight, untouched));
}

TEST(AdamW, ComputesTheAmaxOfTheUpdatedMaster) {
  float master[] = {1, -3.00390625F, 2, std::nanf("")}, gradient[] = {0, 0, 0, 0}, first[4] = {}, second[4] = {};
  float amax = 0.5F;
  const UpdateShard buffers{
      .master = master, .gradient = gradient, .planes = {first, second}, .count = 4, .amax = &amax};
  adamw(step_scalars({}, 0, 1), buffers);
  EXPECT_EQ(amax, 3.0F);  // rounded to bf16
  adamw(step_scalars({.weight_decay = 0.5}, /*lr=*/1, 1), buffers);
  EXPECT_EQ(amax, 3.0F);  // the earlier amax is greater, so it stays
  amax = 0;
  adamw(step_scalars({}, 0, 1), buffers);
  EXPECT_EQ(amax, 1.5F);
}

// Shards that begin and end inside matrices, and shards within one matrix. The update keeps its bits.
TEST(AdamW, RaisesTheAmaxOfEachMatrixByItsOwnElements) {
  std::mt19937 random(74);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const std::int64_t count = random() % 8 == 0 ? 0 : random() % 3000;
    const std::int64_t elements = 1 + static_cast<std::int64_t>(random() % (repeat % 2 == 0 ? 20 : 4000));
    State state = initial_state(count, {at::kFloat, at::kFloat, at::kFloat}), alone = state;
    for (at::Tensor* tensor : {&alone.master, &alone.exp_avg, &alone.exp_avg_sq}) *tensor = tensor->clone();
    if (count > 0) state.master.mutable_data_ptr<float>()[random() % count] = std::nanf("");
    alone.master.copy_(state.master);
    const at::Tensor gradient = gradient_of(count, repeat, at::kFloat);
    const auto buffers_of = [&](State& own) {
      return UpdateShard{.master = own.master.data_ptr(),
                         .gradient = gradient.data_ptr(),
                         .planes = {own.exp_avg.data_ptr(), own.exp_avg_sq.data_ptr()},
                         .count = count};
    };
    UpdateShard buffers = buffers_of(state);
    buffers.amax_elements = elements;
    buffers.amax_offset = static_cast<std::int64_t>(random() % static_cast<unsigned>(elements));
    const auto matrices = static_cast<std::size_t>(touched_matrices(buffers));
    std::vector<float> amaxes(matrices + 2);  // one number before the amaxes, and one after them
    for (float& amax : amaxes) amax = random() % 3 == 0 ? 2.0F : 0.0F;
    std::vector<float> expected = amaxes;
    buffers.amax = amaxes.data() + 1;
    adamw(scalars_at(1), buffers);
    raise_by_definition(buffers, expected.data() + 1);
    ASSERT_EQ(amaxes, expected) << count << " elements from " << buffers.amax_offset << ", matrices of " << elements;
    adamw(scalars_at(1), buffers_of(alone));
    ASSERT_TRUE(same_bits(state.master, alone.master));
    ASSERT_TRUE(same_bits(state.exp_avg_sq, alone.exp_avg_sq));
  }
}

TEST(AdamW, RejectsInvalidArguments) {
  float value = 0;
  UpdateShard buffers{.master = &value,
                      .weight = &value,
                      .weight_type = DType::bf16,
                      .gradient = &value,
                      .planes = {&value, &value},
                      .count = 1};
  EXPECT_THROW(adamw(step_scalars({}, 0, 1), buffers), Error);
  buffers.weight = nullptr;
  EXPECT_THROW(scalars_at(0), Error);
  double wide[4] = {};
  float amax = 0;
  EXPECT_THROW(adamw({}, UpdateShard{.master = wide,
                                     .master_type = DType::fp64,
                                     .gradient = wide + 1,
                                     .planes = {wide + 2, wide + 3},
                                     .count = 1,
                                     .amax = &amax}),
               Error);
  for (const auto& [elements, offset] : {std::pair{4L, 4L}, {4L, -1L}, {0L, 1L}, {-4L, 0L}}) {
    UpdateShard outside = buffers;
    outside.amax = &amax;
    outside.amax_elements = elements;
    outside.amax_offset = offset;
    EXPECT_THROW(adamw({}, outside), Error) << offset << " of " << elements;
  }
  buffers.planes[1] = nullptr;
  EXPECT_THROW(adamw(step_scalars({}, 0, 1), buffers), Error);
  EXPECT_NO_THROW(adamw({}, UpdateShard{}));
}

// ---- row square sums

TEST(RowSquareSums, AddSquaresInFp64) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const std::int64_t cols : {0L, 1L, 3L, 17L, 129L, 1000L}) {
      const std::int64_t rows = 5, stride = cols + 4;
      const at::Tensor values = random_tensor({rows, stride}, 1, type);
      Values sums(rows), expected(rows);
      row_square_sums(values.const_data_ptr(), to_dtype(type), rows, cols, stride, sums.data());
      const Values in = values_of(values);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) {
          const double value = in[static_cast<std::size_t>(r * stride + c)];
          expected[static_cast<std::size_t>(r)] += value * value;
        }
      // Both results are sums of at most `cols` positive terms in fp64.
      expect_near(sums, expected,
                  [&](std::size_t i) { return 2 * static_cast<double>(cols + 1) * 0x1p-53 * expected[i]; });
      Values alone(1);  // a row at another address with another stride: the same bits
      row_square_sums(values.narrow(0, 3, 1).clone().const_data_ptr(), to_dtype(type), 1, cols, cols, alone.data());
      EXPECT_EQ(alone[0], sums[3]);
      const std::vector<std::uint8_t> states{1, 0, 3, 0, 2};  // rows 1 and 3 count as zeros and are not read
      Values some(rows, -1);
      row_square_sums(values.const_data_ptr(), to_dtype(type), rows, cols, stride, some.data(), states.data());
      EXPECT_EQ(some, (Values{sums[0], 0, sums[2], 0, sums[4]}));
    }
  }
}

constexpr AdamW kGrouped{.weight_decay = 0.1};

TEST(UpdatePolicies, GiveParametersTheirDecay) {
  UpdatePolicy policy;
  policy.rules = {make_rule(kGrouped), make_rule({.weight_decay = 0.2})};
  policy.parameters["rate"] = {.group = {.lr_factor = 0.5}};
  policy.parameters["decay"] = {.rule = 1, .group = {.decay = 0.3}};
  const auto group = [&](const char* name, bool decays) { return policy.update_of(name, decays).group; };
  EXPECT_EQ(group("other", true), UpdateGroup{});
  EXPECT_EQ(group("other", false), (UpdateGroup{.decay = 0}));
  EXPECT_EQ(group("rate", true), (UpdateGroup{.lr_factor = 0.5}));
  EXPECT_EQ(group("rate", false), (UpdateGroup{.lr_factor = 0.5, .decay = 0}));
  EXPECT_EQ(group("decay", false), (UpdateGroup{.decay = 0.3}));
  EXPECT_EQ(&policy.rule_of("decay"), policy.rules[1].get());
  EXPECT_EQ(&policy.rule_of("other"), policy.rules[0].get());
}

TEST(UpdateScalars, AreOneArrayOfAllGroups) {
  UpdatePolicy policy;
  policy.rules = {make_rule(kGrouped), make_rule({.beta1 = 0.5, .weight_decay = 0.2})};
  UpdateScalars scalars(std::make_shared<const UpdatePolicy>(policy));
  EXPECT_EQ(scalars.bytes(), 0u);
  EXPECT_EQ(scalars.add({.rule = 1, .group = {.lr_factor = 0.25}}), 0);
  EXPECT_EQ(scalars.add({}), 0);
  EXPECT_EQ(scalars.add({.group = {.lr_factor = 0}}), 1);
  EXPECT_EQ(scalars.add({.group = {.decay = 0.5}}), 2);
  EXPECT_EQ(scalars.add({.group = {.lr_factor = 0}}), 1);
  EXPECT_EQ(scalars.bytes(), 4 * sizeof(StepScalars));
  EXPECT_EQ(scalars.offset_of(0), 0u);
  EXPECT_EQ(scalars.offset_of(1), 3 * sizeof(StepScalars));
  const std::array<StepScalars, 4> expected{step_scalars(kGrouped, 0.125, 7), step_scalars(kGrouped, 0, 7),
                                            step_scalars({.weight_decay = 0.5}, 0.125, 7),
                                            step_scalars({.beta1 = 0.5, .weight_decay = 0.2}, 0.03125, 7)};
  std::array<StepScalars, 4> got;
  scalars.write(0.125, 7, reinterpret_cast<std::byte*>(got.data()));
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), sizeof got), 0);
  EXPECT_THROW(UpdateScalars(std::make_shared<const UpdatePolicy>()), Error);
}

// A rate of 0 keeps the weights, and the moments follow the gradients. The other shards of the call have their own
// rates and decays, as the parameter groups of torch.optim.AdamW, which calls this function of torch for each group.
// The bounds are those of AdamW.AgreesWithTorch.
TEST(UpdateGroups, AgreeWithTorch) {
  constexpr std::int64_t numel = 300;
  constexpr double lr = 1e-2;
  const std::vector<ParameterUpdate> updates{{},
                                             {.group = {.lr_factor = 0.5}},
                                             {.group = {.decay = 0}},
                                             {.group = {.lr_factor = 3, .decay = 0.5}},
                                             {.group = {.lr_factor = 0}},
                                             {.group = {.lr_factor = 0.5}}};
  const auto rule = make_rule(kGrouped);
  UpdateScalars scalars(one_rule(rule));
  struct OfTorch {
    std::vector<at::Tensor> master, exp_avg, exp_avg_sq;
  };
  std::vector<at::Tensor> masters, gradients, exp_avgs, exp_avg_sqs;
  std::vector<OfTorch> torch;
  std::vector<UpdateShard> shards;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    masters.push_back(tensor_of(random_values(numel, i, 1), {numel}, at::kDouble));
    gradients.push_back(masters.back().clone());
    exp_avgs.push_back(tensor_of(Values(numel, 0.0), {numel}, at::kDouble));
    exp_avg_sqs.push_back(exp_avgs.back().clone());
    torch.push_back({{masters[i].clone()}, {exp_avgs[i].clone()}, {exp_avgs[i].clone()}});
    shards.push_back({.master = masters[i].data_ptr(),
                      .master_type = quant::DType::fp64,
                      .gradient = gradients[i].data_ptr(),
                      .gradient_type = quant::DType::fp64,
                      .planes = {exp_avgs[i].data_ptr(), exp_avg_sqs[i].data_ptr()},
                      .count = numel,
                      .group = scalars.add(updates[i])});
  }
  const at::Tensor first_of_zero_rate = masters[4].clone();
  std::vector<std::byte> written(scalars.bytes());
  EXPECT_EQ(written.size(), 5 * sizeof(StepScalars));
  const Clip clip;
  for (std::int64_t step = 1; step <= 20; ++step) {
    for (std::size_t i = 0; i < updates.size(); ++i)
      gradients[i].copy_(
          tensor_of(random_values(numel, 100 * i + static_cast<std::size_t>(step), 1), {numel}, at::kDouble));
    scalars.write(lr, step, written.data());
    rule->update(shards, written.data(), &clip, {});
    for (std::size_t i = 0; i < updates.size(); ++i) {
      const UpdateGroup& group = updates[i].group;
      const std::vector<at::Tensor> gradient{gradients[i].clone()};
      const std::vector<at::Tensor> steps{tensor_of({static_cast<double>(step)}, {}, at::kFloat)};
      at::_fused_adamw_(torch[i].master, gradient, torch[i].exp_avg, torch[i].exp_avg_sq, {}, steps,
                        lr * group.lr_factor, kGrouped.beta1, kGrouped.beta2,
                        group.decay.value_or(kGrouped.weight_decay), kGrouped.eps, false, false);
    }
  }
  for (std::size_t i = 0; i < updates.size(); ++i) {
    SCOPED_TRACE(i);
    const double factor = updates[i].group.lr_factor;
    expect_near(values_of(exp_avgs[i]), values_of(torch[i].exp_avg[0]), [](std::size_t) { return 1e-14; });
    expect_near(values_of(exp_avg_sqs[i]), values_of(torch[i].exp_avg_sq[0]), [](std::size_t) { return 1e-14; });
    expect_near(values_of(masters[i]), values_of(torch[i].master[0]),
                [&](std::size_t) { return std::max(factor, 1.0) * 20 * 1e-9; });
  }
  EXPECT_TRUE(same_bits(masters[4], first_of_zero_rate));
}

}  // namespace
}  // namespace tessera::ops::test
