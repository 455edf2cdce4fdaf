// Tests that a norm whose input or gradient is given as parts has the same bits as the norm of their sum.
#include <gtest/gtest.h>

#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/norm/rms_norm.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

class SummedNorm : public KindTest {
 protected:
  // Returns matrices of different magnitudes. Part 2 cancels part 1, and part 5 cancels part 4, so that another order
  // of additions gives other bits in every type.
  std::vector<at::Tensor> random_parts(std::int64_t count, at::IntArrayRef shape, std::uint64_t seed) const {
    std::vector<at::Tensor> parts;
    for (std::int64_t part = 0; part < count; ++part)
      parts.push_back(part % 3 == 2 ? parts.back().neg()
                                    : random_tensor(shape, seed + static_cast<std::uint64_t>(part), type(),
                                                    part % 3 == 1 ? 0x1p18 : 0.7));
    return parts;
  }
  // Adds the parts in their order in the accumulator type and rounds once.
  at::Tensor sum_of(const std::vector<at::Tensor>& parts) const {
    at::Tensor sum = parts[0].to(accumulator(GetParam().type));
    for (std::size_t part = 1; part < parts.size(); ++part) sum = sum.add(parts[part].to(sum.scalar_type()));
    return sum.to(GetParam().type);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, SummedNorm, testing::ValuesIn(every_kind()), name_of_kind);

struct SummedCase {
  std::int64_t parts = 2, tokens = 3, hidden = 64;
  bool has_residual = true, drops = false, shifts = false;
};

// Every number of parts; widths with and without whole packs; rows of every kernel; memory with another alignment.
std::vector<SummedCase> summed_cases() {
  std::vector<SummedCase> cases;
  for (std::int64_t parts = 1; parts <= kMaxSummedParts; ++parts)
    for (const bool drops : {false, true})
      for (const std::int64_t hidden : {1, 17, 136})
        cases.push_back({.parts = parts, .hidden = hidden, .has_residual = (parts + hidden) % 4 != 0, .drops = drops});
  for (const std::int64_t parts : {2, 3})
    for (const bool has_residual : {false, true})
      for (const auto& [tokens, hidden] :
           {std::pair{0L, 16L}, {1L, 129L}, {600L, 72L}, {2L, 9001L}, {2L, 18000L}, {2L, 33000L}, {2L, 40000L}})
        cases.push_back({.parts = parts, .tokens = tokens, .hidden = hidden, .has_residual = has_residual});
  cases.push_back({.parts = 3, .tokens = 2, .hidden = 40000, .has_residual = false, .drops = true});
  cases.push_back({.parts = 2, .tokens = 5, .hidden = 128, .shifts = true});
  return cases;
}

TEST_P(SummedNorm, HasTheBitsOfTheSumFollowedByTheNorm) {
  const at::Tensor step = ids({12});
  for (const SummedCase& it : summed_cases()) {
    SCOPED_TRACE(testing::Message() << it.parts << " parts, " << it.tokens << " x " << it.hidden << ", residual "
                                    << it.has_residual << ", drops " << it.drops);
    const Dropout dropout{.probability = it.drops ? 0.3 : 0,
                          .seed = 5,
                          .site = 7,
                          .step = step.const_data_ptr<std::int64_t>(),
                          .first_token = 19};
    const std::vector<std::int64_t> shape{it.tokens, it.hidden};
    std::vector<at::Tensor> x = random_parts(it.parts, shape, 1), dy = random_parts(it.parts, shape, 21);
    if (it.shifts) x.back() = shifted(x.back(), 1), dy.front() = shifted(dy.front(), 3);
    const at::Tensor weight = random_tensor({it.hidden}, 41, type()), dsum = random_tensor(shape, 42, type());
    const at::Tensor residual = it.has_residual ? random_tensor(shape, 43, type()) : at::Tensor();
    const RmsNorm expected = rms_norm_forward(sum_of(x), residual, weight, 1e-5, dropout);
    const RmsNorm got = rms_norm_forward(x, residual, weight, 1e-5, dropout);
    EXPECT_TRUE(same_bits(got.y, expected.y));
    EXPECT_TRUE(same_bits(got.sum, expected.sum));
    EXPECT_TRUE(same_bits(got.rstd, expected.rstd));

    for (const bool accumulate : {false, true}) {
      at::Tensor dweight = random_tensor({it.hidden}, 44, accumulator(type())), same = dweight.clone();
      const at::Tensor later = it.has_residual ? dsum : at::Tensor();
      const RmsNormGradients dx =
          rms_norm_backward(sum_of(dy), later, expected.sum, expected.rstd, weight, dweight, accumulate, dropout);
      const RmsNormGradients fused =
          rms_norm_backward(dy, later, expected.sum, expected.rstd, weight, same, accumulate, dropout);
      EXPECT_TRUE(same_bits(fused.residual, dx.residual));
      EXPECT_TRUE(same_bits(fused.x, dx.x));
      EXPECT_TRUE(same_bits(same, dweight));
    }
  }
}

// Checks that the test above can detect another order and a second rounding.
TEST_P(SummedNorm, AnotherOrderGivesOtherBits) {
  const std::vector<at::Tensor> parts = random_parts(3, {4, 50}, 1);
  const at::Tensor weight = random_tensor({50}, 9, type());
  const RmsNorm norm = rms_norm_forward(parts, at::Tensor(), weight, 1e-5);
  EXPECT_TRUE(same_bits(norm.sum, sum_of(parts)));
  EXPECT_FALSE(same_bits(norm.sum, sum_of({parts[0], sum_of({parts[1], parts[2]})})));
}

TEST_P(SummedNorm, RefusesOtherPartsThanMatricesOfOneShape) {
  const at::Tensor x = random_tensor({2, 4}, 1, type()), weight = random_tensor({4}, 2, type());
  const std::vector<at::Tensor> none, many(kMaxSummedParts + 1, x), other{x, x.narrow(0, 0, 1)};
  for (const std::vector<at::Tensor>& parts : {none, many, other}) {
    EXPECT_THROW(rms_norm_forward(parts, at::Tensor(), weight, 1e-5), Error);
    at::Tensor dweight = random_tensor({4}, 3, accumulator(type())), rstd = random_tensor({2}, 4, accumulator(type()));
    EXPECT_THROW(rms_norm_backward(parts, at::Tensor(), x, rstd, weight, dweight, false), Error);
  }
}

}  // namespace
}  // namespace tessera::ops::test
