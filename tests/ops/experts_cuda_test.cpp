// Tests the operators of experts on CUDA. The results have the bits of the CPU where docs/numerics.md promises this,
// and the bits of a row do not depend on other rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/experts/permute.h"
#include "tessera/ops/experts/weighted_swiglu.h"
#include "tessera/ops/grouped/companions.h"
#include "tessera/ops/grouped/grouped.h"
#include "tessera/ops/router/router.h"
#include "tessera/ops/router/router_gradient.h"
#include "tessera/ops/tensor.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

constexpr at::ScalarType kModelTypes[] = {at::kFloat, at::kBFloat16, at::kDouble};

class OnCudaExperts : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

at::Tensor gpu_copy(const at::Tensor& tensor) {
  return tensor.to(at::kCUDA);
}

// More tokens than a chunk of the kernel, and all choices local.
std::vector<ExpertsCase> cuda_cases() {
  std::vector<ExpertsCase> cases = experts_cases();
  cases.push_back({.length = 300, .blocks = 3, .k = 8, .local = {.first = 16, .count = 100, .all = 128}});
  cases.push_back({.length = 513, .blocks = 1, .k = 2, .local = {.first = 0, .count = 8, .all = 8}});
  return cases;
}

// The rows of the same choices, selected on both devices.
struct Both {
  Selection host, device;
};
Both both(const ExpertsCase& it, std::uint64_t seed) {
  const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, seed);
  return {select_rows(choices, it.local, it.blocks), select_rows(gpu_copy(choices), it.local, it.blocks)};
}
at::Tensor used_of(const at::Tensor& rows, const Both& selections) {
  return rows.narrow(0, 0, selections.host.rows());
}

// ---- rows

TEST_F(OnCudaExperts, RowsAreTheSame) {
  for (const ExpertsCase& it : cuda_cases()) {
    SCOPED_TRACE(it);
    const Both selections = both(it, 1);
    EXPECT_EQ(selections.device.room, selections.host.room);
    const at::Tensor ends = selections.device.ends.cpu(), by_slot = selections.device.rows_by_slot.cpu(),
                     in_order = selections.device.rows_in_order.cpu();
    for (std::int64_t expert = 0; expert < it.local.count; ++expert)
      EXPECT_EQ(ends[expert].item<int>(), selections.host.rows_of(expert).second) << "expert " << expert;
    at::Tensor expected = by_slot.clone().fill_(-1);
    std::int64_t row = 0;
    for (const ReferenceRow& source : rows_of(selections.host))
      expected[source.token][source.slot].fill_(static_cast<int>(row++));
    EXPECT_TRUE(same_bits(by_slot, expected));
    EXPECT_TRUE(same_bits(used_of(selections.device.row_tokens.cpu(), selections),
                          used_of(selections.host.tokens.to(at::kInt), selections)));
    for (std::int64_t token = 0; token < it.tokens(); ++token) {
      std::vector<int> rows;
      for (std::int64_t slot = 0; slot < it.k; ++slot)
        if (const int at = expected[token][slot].item<int>(); at >= 0) rows.push_back(at);
      std::ranges::sort(rows);
      rows.resize(static_cast<std::size_t>(it.k), -1);
      for (std::int64_t i = 0; i < it.k; ++i)
        EXPECT_EQ(in_order[token][i].item<int>(), rows[static_cast<std::size_t>(i)]) << "token " << token;
    }
  }
}

TEST_F(OnCudaExperts, ChoicesOutsideTheExpertsHaveNoRow) {
  const at::Tensor choices = choices_tensor({0, 4, -1, 1, std::numeric_limits<std::int32_t>::min(), 1 << 30}, 2);
  const Selection selection = select_rows(gpu_copy(choices), {.first = 0, .count = 2, .all = 4}, 1);
  EXPECT_TRUE(same_bits(selection.rows_by_slot.cpu(), choices_tensor({0, -1, -1, 1, -1, -1}, 2)));
}

// Two experts of four are local, so the even load is one row for each token.
TEST_F(OnCudaExperts, RowsBeyondTheRoomAreDroppedAndCounted) {
  const LocalExperts local{.first = 0, .count = 2, .all = 4};
  const at::Tensor choices = gpu_copy(choices_tensor({1, 0, 0, 1, 1, 3, 2, 1, 0, 2, 1, 2}, 2));
  at::Tensor overflows = gpu_copy(make({1}, at::kLong).fill_(0)), needed = gpu_copy(make({1}, at::kDouble).fill_(0));
  const auto select = [&](double factor) {
    return select_rows(choices, local, 1,
                       {.factor = factor,
                        .overflows = overflows.mutable_data_ptr<std::int64_t>(),
                        .needed = needed.mutable_data_ptr<double>()});
  };
  const Selection whole = select(0), fitting = select(8.0 / 6);
  EXPECT_EQ(whole.room, 12);
  EXPECT_EQ(fitting.room, 8);
  EXPECT_TRUE(same_bits(fitting.rows_by_slot, whole.rows_by_slot));
  EXPECT_EQ(overflows.item<std::int64_t>(), 0);
  EXPECT_EQ(needed.item<double>(), 0);

  const Selection small = select(1);
  EXPECT_EQ(small.room, 6);
  EXPECT_EQ(overflows.item<std::int64_t>(), 1);
  EXPECT_EQ(needed.item<double>(), 8.0 / 6);
  // Expert 0 has three rows and expert 1 has five, of which the last two have no room.
  EXPECT_TRUE(same_bits(small.rows_by_slot, choices_tensor({3, 0, 1, 4, 5, -1, -1, -1, 2, -1, -1, -1}, 2)));
  EXPECT_TRUE(same_bits(small.ends, choices_tensor({3, 6}, 2).flatten()));
  const at::Tensor rows = gpu_copy(random_tensor({6, 3}, 1, at::kFloat)), sums = combine_rows(rows, small).cpu();
  EXPECT_TRUE(same_bits(sums[1], rows[1].add(rows[4])));
  EXPECT_TRUE(same_bits(sums[3], make({3}, at::kFloat).fill_(0)));
  select(0.5);
  EXPECT_EQ(overflows.item<std::int64_t>(), 2);
  EXPECT_EQ(needed.item<double>(), 8.0 / 6);
}

TEST_F(OnCudaExperts, MovedRowsAreTheSame) {
  for (const at::ScalarType type : kModelTypes)
    for (const ExpertsCase& it : cuda_cases())
      for (const std::int64_t width : {1, 5, 64, 2056}) {
        SCOPED_TRACE(testing::Message() << it << ", width " << width << ", " << type);
        const Both selections = both(it, 2);
        const at::Tensor x = random_tensor({it.tokens(), width}, 3, type);
        EXPECT_TRUE(same_bits(used_of(take_rows(gpu_copy(x), selections.device), selections),
                              used_of(take_rows(x, selections.host), selections)));
        const at::Tensor rows = random_rows(selections.host, width, 4, type);
        EXPECT_TRUE(same_bits(combine_rows(gpu_copy(rows), selections.device), combine_rows(rows, selections.host)));
        const at::Tensor values = random_tensor({it.tokens(), it.k}, 5, accumulator(type));
        EXPECT_TRUE(same_bits(used_of(take_choices(gpu_copy(values), selections.device), selections),
                              used_of(take_choices(values, selections.host), selections)));
        const at::Tensor by_row = random_rows(selections.host, 1, 6, accumulator(type)).flatten();
        EXPECT_TRUE(same_bits(put_choices(gpu_copy(by_row), selections.device), put_choices(by_row, selections.host)));
      }
}

// ---- SwiGLU

// fp64 uses the exp of each library. The gradients of the weights are sums over rows, whose order each device chooses.
TEST_F(OnCudaExperts, WeightedSwigluIsTheSame) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const ExpertsCase& it : cuda_cases())
      for (const std::int64_t features : {0, 1, 37, 1040}) {
        SCOPED_TRACE(testing::Message() << it << ", " << features << " features, " << type);
        const Both selections = both(it, 7);
        at::Tensor gate_up = random_rows(selections.host, 2 * features, 8, type);
        gate_up.mul_(20);
        const at::Tensor weights = random_rows(selections.host, 1, 9, accumulator(type)).flatten(),
                         dout = random_rows(selections.host, features, 10, type);
        EXPECT_TRUE(
            same_bits(used_of(weighted_swiglu(gpu_copy(gate_up), gpu_copy(weights), selections.device), selections),
                      used_of(weighted_swiglu(gate_up, weights, selections.host), selections)));
        for (const bool with_output : {false, true}) {
          const auto host = weighted_swiglu_backward(dout, gate_up, weights, selections.host, with_output);
          const auto device = weighted_swiglu_backward(gpu_copy(dout), gpu_copy(gate_up), gpu_copy(weights),
                                                       selections.device, with_output);
          EXPECT_TRUE(same_bits(used_of(device.gate_up, selections), used_of(host.gate_up, selections)));
          if (with_output) {
            EXPECT_TRUE(same_bits(used_of(device.out, selections), used_of(host.out, selections)));
          }
          // Two sums of the same n terms differ by at most 2 n u times the sum of magnitudes. A term is below 20^2.
          const double error = 2 * static_cast<double>(features) * static_cast<double>(features) * 400 * 0x1p-24;
          expect_near(values_of(used_of(device.weights, selections)), values_of(used_of(host.weights, selections)),
                      [&](std::size_t) { return error; });
        }
      }
}

// ---- router

struct RouterCase {
  std::int64_t tokens, experts, hidden, k;
};
std::vector<RouterCase> router_cases() {
  return {{1, 1, 1, 1}, {5, 7, 33, 2},    {600, 8, 130, 2}, {67, 128, 2048, 8},
          {0, 4, 8, 2}, {259, 40, 61, 3}, {1100, 70, 65, 3}};
}

at::Tensor every_third_masked(std::int64_t tokens) {
  at::Tensor counted = make({tokens}, at::kBool).fill_(true);
  for (std::int64_t token = 1; token < tokens; token += 3) counted[token].fill_(false);
  return counted;
}

TEST_F(OnCudaExperts, ProductsOfTheRouterAreTheSameInFp32AndFp64) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const auto& [tokens, experts, hidden, k] : router_cases()) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts, hidden " << hidden << ", "
                                      << type);
      const at::ScalarType wide = accumulator(type);
      const at::Tensor x = random_tensor({tokens, hidden}, 1, type), w = random_tensor({experts, hidden}, 2, wide);
      const at::Tensor dlogits = random_tensor({tokens, experts}, 3, wide);
      EXPECT_TRUE(same_bits(router_logits(gpu_copy(x), gpu_copy(w)), router_logits(x, w)));
      EXPECT_TRUE(same_bits(router_dgrad(gpu_copy(dlogits), gpu_copy(w)), router_dgrad(dlogits, w)));
      EXPECT_TRUE(
          same_bits(add_router_dgrad(gpu_copy(x), gpu_copy(dlogits), gpu_copy(w)), add_router_dgrad(x, dlogits, w)));
      for (const bool accumulate : {false, true}) {
        at::Tensor dw = random_tensor({experts, hidden}, 4, wide), device = gpu_copy(dw);
        router_wgrad(dlogits, x, dw, accumulate);
        router_wgrad(gpu_copy(dlogits), gpu_copy(x), device, accumulate);
        EXPECT_TRUE(same_bits(device, dw));
      }
    }
}

// ---- products of the router in bf16 runs, on tensor cores

// Sizes around those of a run (64), of the tiles, and of few experts (16); rows that are not whole packs.
std::vector<RouterCase> split_cases() {
  return {{1, 1, 1, 1},       {5, 7, 33, 1},     {600, 3, 17, 1},  {37, 128, 64, 1},
          {130, 17, 63, 1},   {513, 257, 65, 1}, {40, 8, 2048, 1}, {9, 130, 7168, 1},
          {1025, 16, 128, 1}, {0, 4, 8, 1},      {129, 64, 192, 1}};
}

// Expects a product of inner dimension K within (K / 64 + 128) 2^-23 of the sum of magnitudes, and `more` of it.
void expect_split(const at::Tensor& got, const Products& exact, std::int64_t inner, double more = 0) {
  const double error = (static_cast<double>(inner) / 64 + 128) * 0x1p-23 + more;
  expect_near(values_of(got), exact.value, [&](std::size_t i) { return error * exact.magnitude[i]; });
}
double mean_square(const at::Tensor& got, const Products& exact) {
  const Values values = values_of(got);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += (values[i] - exact.value[i]) * (values[i] - exact.value[i]);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

TEST_F(OnCudaExperts, ProductsOfTheRouterInBf16AreWithinTheirBound) {
  for (const auto& [tokens, experts, hidden, k] : split_cases())
    for (const bool is_aligned : {true, false}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts, hidden " << hidden);
      const at::Tensor x = random_tensor({tokens, hidden}, 1, at::kBFloat16),
                       addend = random_tensor({tokens, hidden}, 5, at::kBFloat16);
      const at::Tensor w = random_tensor({experts, hidden}, 2, at::kFloat),
                       dlogits = random_tensor({tokens, experts}, 3, at::kFloat);
      const at::Tensor rows = is_aligned ? gpu_copy(x) : shifted(gpu_copy(x), 1);

      const Products logits = multiply(x, w.t());
      const at::Tensor got = router_logits(rows, gpu_copy(w));
      expect_split(got, logits, hidden);
      // At most twice the error of sums in fp32.
      if (tokens * experts > 300) EXPECT_LE(mean_square(got, logits), 4 * mean_square(router_logits(x, w), logits));

      const Products back = multiply(dlogits, w);
      const Values sum = values_of(add_router_dgrad(gpu_copy(addend), gpu_copy(dlogits), gpu_copy(w))),
                   terms = values_of(addend);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const double exact = terms[i] + back.value[i];
        const double error =
            (static_cast<double>(experts) / 64 + 130) * 0x1p-23 * (back.magnitude[i] + std::abs(terms[i]));
        EXPECT_NEAR(sum[i], exact, error + 1.01 * roundoff(at::kBFloat16) * (std::abs(exact) + error));
      }

      const Products gradient = multiply(dlogits.t(), x);
      at::Tensor dw = gpu_copy(random_tensor({experts, hidden}, 4, at::kFloat));
      const at::Tensor before = dw.clone();
      router_wgrad(gpu_copy(dlogits), rows, dw, false);
      expect_split(dw, gradient, std::min<std::int64_t>(tokens, 512), static_cast<double>(tokens) / 512 * 0x1p-23);
      at::Tensor added = before.clone();
      router_wgrad(gpu_copy(dlogits), rows, added, true);
      EXPECT_TRUE(same_bits(added, before.clone().add_(dw)));
    }
}

TEST_F(OnCudaExperts, ProductsOfATokenInBf16DoNotDependOnOtherTokens) {
  const at::Tensor x = gpu_copy(random_tensor({300, 136}, 1, at::kBFloat16)),
                   addend = gpu_copy(random_tensor({300, 136}, 5, at::kBFloat16));
  for (const std::int64_t experts : {7, 40}) {
    const at::Tensor w = gpu_copy(random_tensor({experts, 136}, 2, at::kFloat)),
                     dlogits = gpu_copy(random_tensor({300, experts}, 3, at::kFloat));
    const at::Tensor logits = router_logits(x, w), sum = add_router_dgrad(addend, dlogits, w);
    for (const auto& [begin, count] : {std::pair{0L, 1L}, {299L, 1L}, {5L, 7L}, {100L, 150L}}) {
      EXPECT_TRUE(same_bits(router_logits(x.narrow(0, begin, count), w), logits.narrow(0, begin, count)));
      EXPECT_TRUE(same_bits(add_router_dgrad(addend.narrow(0, begin, count), dlogits.narrow(0, begin, count), w),
                            sum.narrow(0, begin, count)));
    }
  }
}

// Values that are not finite reach the results that read them, and no others. The greatest finite numbers are finite.
TEST_F(OnCudaExperts, ProductsOfTheRouterInBf16ShowValuesThatAreNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const at::Tensor x = random_tensor({70, 72}, 1, at::kBFloat16), w = random_tensor({20, 72}, 2, at::kFloat);
  const at::Tensor expected = router_logits(gpu_copy(x), gpu_copy(w)).cpu();
  for (const double value : {nan, infinity, -infinity}) {
    at::Tensor bad_x = x.clone(), bad_w = w.clone();
    bad_x[3][9].fill_(value), bad_w[11][70].fill_(value);
    const Values got = values_of(router_logits(gpu_copy(bad_x), gpu_copy(bad_w))), good = values_of(expected);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (i / 20 == 3 || i % 20 == 11)
        EXPECT_FALSE(std::isfinite(got[i])) << i;
      else
        EXPECT_EQ(got[i], good[i]) << i;
    }
  }
  const at::Tensor greatest =
      tensor_of({std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()}, {2, 1}, at::kFloat);
  const Values got = values_of(router_logits(gpu_copy(tensor_of({0.5}, {1, 1}, at::kBFloat16)), gpu_copy(greatest)));
  EXPECT_EQ(got, (Values{std::numeric_limits<float>::max() / 2, -std::numeric_limits<float>::max() / 2}));
}

// fp64 uses the exp of each library.
TEST_F(OnCudaExperts, ChoicesSumsAndGradientsOfTheRouterAreTheSame) {
  for (const bool normalizes : {false, true})
    for (const auto& [tokens, experts, hidden, k] : router_cases()) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << k << " of " << experts << " experts");
      at::Tensor logits = random_tensor({tokens, experts}, 5, at::kFloat, 6.0);
      logits.narrow(0, 0, tokens / 2).round_();  // so that many are equal
      const RouterOptions options{.k = k, .normalizes = normalizes};
      const Routing host = route(logits, options);
      Routing device = route(gpu_copy(logits), options);
      EXPECT_TRUE(same_bits(device.probabilities, host.probabilities));
      EXPECT_TRUE(same_bits(device.experts, host.experts));
      EXPECT_TRUE(same_bits(device.weights, host.weights));
      // The logarithms of the two libraries differ by a few units of the last place.
      const Values expected = values_of(host.logsumexp);
      expect_near(values_of(device.logsumexp), expected,
                  [&](std::size_t i) { return 8 * 0x1p-24 * std::max(1.0, std::abs(expected[i])); });
      device.logsumexp = gpu_copy(host.logsumexp);

      const at::Tensor counted = every_third_masked(tokens);
      const RouterSums sums = router_sums(host, counted), on_device = router_sums(device, gpu_copy(counted));
      EXPECT_TRUE(same_bits(on_device.counts, sums.counts));
      EXPECT_TRUE(same_bits(on_device.probabilities, sums.probabilities));
      EXPECT_TRUE(same_bits(on_device.logsumexp_squares, sums.logsumexp_squares));

      const RoutingGradients gradients{.weights = random_tensor({tokens, k}, 6, at::kFloat),
                                       .probabilities = random_tensor({experts}, 7, at::kFloat),
                                       .logsumexp_squares = random_tensor({1}, 8, at::kFloat)};
      EXPECT_TRUE(same_bits(route_backward(device, options,
                                           {.weights = gpu_copy(gradients.weights),
                                            .probabilities = gpu_copy(gradients.probabilities),
                                            .logsumexp_squares = gpu_copy(gradients.logsumexp_squares)},
                                           gpu_copy(counted)),
                            route_backward(host, options, gradients, counted)));
      RoutingGradients only_weights, only_weights_on_device;
      only_weights.weights = gradients.weights, only_weights_on_device.weights = gpu_copy(gradients.weights);
      EXPECT_TRUE(same_bits(route_backward(device, options, only_weights_on_device, gpu_copy(counted)),
                            route_backward(host, options, only_weights, counted)));
    }
}

TEST_F(OnCudaExperts, LogitsThatAreNotFiniteHaveDistinctChoicesAndWeightsThatAreNaN) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kLarge = std::numeric_limits<double>::infinity();
  for (const Values& row : {Values{1, kNaN, 3, 4, 5}, Values{kNaN, 2, 3, 4, 5}, Values{kNaN, kNaN, kNaN, kNaN, kNaN},
                            Values{1, 2, kLarge, 4, 5}, Values{-kLarge, -kLarge, -kLarge, -kLarge, -kLarge}}) {
    const Routing routing = route(gpu_copy(tensor_of(row, {1, 5}, at::kFloat)), {.k = 3, .normalizes = true});
    EXPECT_TRUE(same_bits(routing.experts.cpu(), choices_tensor({0, 1, 2}, 3)));
    for (const double weight : values_of(routing.weights)) EXPECT_TRUE(std::isnan(weight));
  }
}

// ---- products

// The bound of a product of n terms in any order, with one rounding to bf16: 2 n u sum |a b| + roundoff |value|. The
// operands are below 1, so n bounds the sum of magnitudes.
void expect_cpu_product(const at::Tensor& device, const at::Tensor& host, double terms) {
  const double u = accumulator_roundoff(host.scalar_type()), once = 2.02 * roundoff(host.scalar_type());
  const Values expected = values_of(host);
  expect_near(values_of(device), expected, [&](std::size_t i) {
    const double rounding = host.scalar_type() == at::kBFloat16 ? once * std::abs(expected[i]) : 0;
    return 2 * (terms + 1) * u * terms + rounding;
  });
}

TEST_F(OnCudaExperts, GroupedProductsAreThoseOfTheCpu) {
  for (const at::ScalarType type : kModelTypes)
    for (const ExpertsCase& it : cuda_cases())
      for (const auto& [out, in] : {std::pair{3L, 5L}, {17L, 33L}, {1L, 1L}, {0L, 5L}, {64L, 16L}, {136L, 200L}}) {
        SCOPED_TRACE(testing::Message() << it << ", out " << out << ", in " << in << ", " << type);
        const Both selections = both(it, 11);
        const at::Tensor x = random_rows(selections.host, in, 12, type),
                         dy = random_rows(selections.host, out, 13, type),
                         w = random_tensor({it.local.count * out, in}, 14, type);
        expect_cpu_product(used_of(grouped_fprop(gpu_copy(x), gpu_copy(w), selections.device), selections),
                           used_of(grouped_fprop(x, w, selections.host), selections), static_cast<double>(in));
        expect_cpu_product(used_of(grouped_dgrad(gpu_copy(dy), gpu_copy(w), selections.device), selections),
                           used_of(grouped_dgrad(dy, w, selections.host), selections), static_cast<double>(out));
        at::Tensor dw = random_tensor({it.local.count * out, in}, 15, type), device = gpu_copy(dw);
        grouped_wgrad(dy, x, selections.host, dw, false);
        grouped_wgrad(gpu_copy(dy), gpu_copy(x), selections.device, device, false);
        expect_cpu_product(device, dw, static_cast<double>(it.tokens()));
        if (type == at::kBFloat16) continue;
        at::Tensor sum = gpu_copy(random_tensor(dw.sizes(), 16, type));
        const at::Tensor alone = sum.clone().add_(device);
        grouped_wgrad(gpu_copy(dy), gpu_copy(x), selections.device, sum, true);
        EXPECT_TRUE(same_bits(sum, alone));
      }
}

TEST_F(OnCudaExperts, WeightGradientsOfBf16AreNotWrittenInFp32) {
  const Both selections = both(experts_cases()[0], 1);
  const at::Tensor x = gpu_copy(random_rows(selections.host, 8, 1, at::kBFloat16));
  at::Tensor dw = gpu_copy(random_tensor({selections.host.local * 8, 8}, 2, at::kFloat));
  EXPECT_THROW(grouped_wgrad(x, x, selections.device, dw, false), Error);
}

// Computes the products of one expert together with groups of other sizes and other numbers of allocated rows. The
// library chooses its kernel by the numbers of rows and groups.
TEST_F(OnCudaExperts, BitsOfAnExpertDoNotDependOnOtherExperts) {
  constexpr std::int64_t kIn = 96, kOut = 72;
  for (const at::ScalarType type : kModelTypes)
    for (const std::int64_t own : {1, 40, 333}) {
      const at::Tensor x = gpu_copy(random_tensor({own, kIn}, 1, type)),
                       dy = gpu_copy(random_tensor({own, kOut}, 2, type)),
                       w = gpu_copy(random_tensor({kOut, kIn}, 3, type));
      at::Tensor y, dx, dw;
      for (const std::int64_t experts : {1, 3, 33})
        for (const std::int64_t place : {std::int64_t{0}, experts - 1})
          for (const std::int64_t other : {0, 3, 700}) {
            SCOPED_TRACE(testing::Message() << own << " rows, expert " << place << " of " << experts << ", others "
                                            << other << ", " << type);
            std::vector<std::int32_t> choices;
            for (std::int64_t e = 0; e < experts; ++e)
              choices.insert(choices.end(), static_cast<std::size_t>(e == place ? own : other),
                             static_cast<std::int32_t>(e));
            choices.resize(choices.size() + 4000, static_cast<std::int32_t>(experts));  // unused rows of memory
            const Selection selection = select_rows(gpu_copy(choices_tensor(choices, 1)),
                                                    {.first = 0, .count = experts, .all = experts + 1}, 1);
            const std::int64_t first = place == 0 ? 0 : place * other;
            const at::Tensor rows = gpu_copy(random_tensor({selection.room, kIn}, 4, type)),
                             gradients = gpu_copy(random_tensor({selection.room, kOut}, 5, type));
            const at::Tensor weights = gpu_copy(random_tensor({experts * kOut, kIn}, 6, type));
            rows.narrow(0, first, own).copy_(x);
            gradients.narrow(0, first, own).copy_(dy);
            weights.narrow(0, place * kOut, kOut).copy_(w);
            at::Tensor all = weights.clone();
            grouped_wgrad(gradients, rows, selection, all, false);
            const at::Tensor own_y = grouped_fprop(rows, weights, selection).narrow(0, first, own),
                             own_dx = grouped_dgrad(gradients, weights, selection).narrow(0, first, own),
                             own_dw = all.narrow(0, place * kOut, kOut);
            if (!y.defined()) y = own_y.clone(), dx = own_dx.clone(), dw = own_dw.clone();
            EXPECT_TRUE(same_bits(own_y, y));
            EXPECT_TRUE(same_bits(own_dx, dx));
            EXPECT_TRUE(same_bits(own_dw, dw));
          }
    }
}

TEST_F(OnCudaExperts, CompanionsAreCheckedForShapesOfModels) {
  for (const auto& [out, in] : {std::pair{2L * 768, 2048L}, {2048L, 768L}, {58L, 61L}, {61L, 29L}})
    for (const quant::Format format : {quant::Format::bf16, quant::Format::fp8, quant::Format::fp8_block,
                                       quant::Format::mxfp8, quant::Format::nvfp4})
      EXPECT_NO_THROW(check_companions({.out = out, .in = in, .format = format}, at::Device(at::kCUDA, 0)))
          << name_of(format) << " " << out << " x " << in;
  EXPECT_NO_THROW(check_companions(
      {.out = 61, .in = 29, .format = quant::Format::nvfp4, .transform = true, .rounds_randomly = true},
      at::Device(at::kCUDA, 0)));
}

}  // namespace
}  // namespace tessera::ops::test
