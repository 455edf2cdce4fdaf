// Tests products of experts that multiply e4m3 codes on a GPU. On a CPU they multiply decoded values.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/ops/grouped/companions.h"
#include "tessera/ops/grouped/grouped_casts.h"
#include "tessera/ops/grouped/grouped_codes.h"
#include "tessera/ops/grouped/grouped_formats.h"
#include "tessera/ops/tensor.h"
#include "tests/ops/decoded_matrices.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test::formats {
namespace {

using quant::Encoding, quant::Format;
using enum quant::ProductKernel;

constexpr Kinds kCodes{Format::fp8, quant::Fp8Recipe::e4m3};
const Encoding kCode = weight_encoding(Format::fp8);

struct CodeWidths {
  std::int64_t out, in;
};

at::Tensor graded(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  at::Tensor values = random_tensor({rows, cols}, seed, at::TensorOptions(at::kFloat));
  for (std::int64_t row = 0; row < rows; ++row) values[row].mul_(std::ldexp(1.0, static_cast<int>(row * 5 % 7) - 3));
  return values.to(at::kBFloat16);
}

class ExpertsAsCodes : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
  bool on_gpu() const { return GetParam() == at::kCUDA; }
  at::Tensor here(const at::Tensor& host) const { return host.to(at::Device(GetParam())); }

  // Hopper adds 32 products at once and truncates each at 2^-13 of the greatest. In a fast product it also truncates
  // the previous sum. A CPU adds in fp32.
  void expect_product(const at::Tensor& got, const Decoded& left, const Decoded& right, bool fast) const {
    const double alpha = static_cast<double>(left.number) * right.number;
    const Values expected = values_of(left.values.matmul(right.values.t()).mul(alpha));
    const Values sizes = values_of(left.values.abs().matmul(right.values.abs().t()).mul(alpha));
    const auto terms = static_cast<double>(left.values.size(1));
    const double sums = !on_gpu() ? (terms + 4) * 0x1p-24 : fast ? (terms + 32) * 0x1p-13 : 0x1p-8;
    expect_near(values_of(got.cpu()), expected, [&](std::size_t i) {
      return sums * sizes[i] + 1.01 * roundoff(at::kBFloat16) * std::abs(expected[i]);
    });
  }

  RowQuantization scaled(const at::Tensor& rows, const Selection& selection, RowMatrices matrices) const {
    return {.encoding = kCode, .whole = grouped_scales(kCode, amaxes_of_rows(rows, selection, matrices))};
  }
  // The three products. y and dx of rows after the selected rows are undefined.
  std::array<at::Tensor, 3> products(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& w,
                                     const Selection& selection) const {
    const WholeScale scale = grouped_scales(kCode, amaxes_of_stack(w, selection.local));
    const auto stack = [&](Sides side) { return code_stack(w, selection.local, kCode, scale, side); };
    at::Tensor dw = at::full(w.sizes(), std::nan(""), x.options());
    using enum RowMatrices;
    const at::Tensor y = grouped_fprop(x, scaled(x, selection, blocks), stack(Sides::rows), selection),
                     dx = grouped_dgrad(dy, scaled(dy, selection, blocks), stack(Sides::columns), selection);
    grouped_wgrad({.rows = dy, .as = scaled(dy, selection, experts)}, {.rows = x, .as = scaled(x, selection, experts)},
                  selection, dw, false, native);
    return {y, dx, dw};
  }

  void check(const ExpertsCase& it, const CodeWidths& widths, std::uint64_t seed) const {
    SCOPED_TRACE(testing::Message() << it << ", out " << widths.out << ", in " << widths.in);
    const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, seed);
    const Selection host = select_rows(choices, it.local, it.blocks),
                    selection = select_rows(here(choices), it.local, it.blocks);
    at::Tensor x = graded(host.room, widths.in, seed + 1), dy = graded(host.room, widths.out, seed + 2);
    for (at::Tensor* rows : {&x, &dy})
      rows->narrow(0, host.rows(), host.room - host.rows()).fill_(std::numeric_limits<double>::quiet_NaN());
    const at::Tensor w = graded(it.local.count * widths.out, widths.in, seed + 3);
    const auto [y, dx, dw] = products(here(x), here(dy), here(w), selection);
    for (std::int64_t expert = 0; expert < it.local.count; ++expert) {
      const Decoded rows = definition(w.narrow(0, expert * widths.out, widths.out), kCode);
      Decoded columns = rows;
      columns.values = rows.values.t();
      for (std::int64_t block = 0; block < it.blocks; ++block) {
        const auto [begin, end] = host.rows_of(expert, block);
        if (begin == end) continue;
        expect_product(y.narrow(0, begin, end - begin), definition(x.narrow(0, begin, end - begin), kCode), rows, true);
        expect_product(dx.narrow(0, begin, end - begin), definition(dy.narrow(0, begin, end - begin), kCode), columns,
                       false);
      }
      const auto [begin, end] = host.rows_of(expert);
      const at::Tensor own = dw.narrow(0, expert * widths.out, widths.out);
      if (begin == end) {
        EXPECT_EQ(own.count_nonzero().item<std::int64_t>(), 0);
        continue;
      }
      Decoded of_dy = definition(dy.narrow(0, begin, end - begin), kCode),
              of_x = definition(x.narrow(0, begin, end - begin), kCode);
      of_dy.values = of_dy.values.t(), of_x.values = of_x.values.t();
      expect_product(own, of_dy, of_x, false);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ExpertsAsCodes, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

TEST_P(ExpertsAsCodes, ProductsAreAlphaTimesTheSumsOfDecodedValues) {
  for (const ExpertsCase& it : experts_cases())
    for (const CodeWidths& widths : {CodeWidths{16, 16}, {48, 80}, {208, 32}}) check(it, widths, 1);
  check({.length = 300, .blocks = 2, .k = 1, .local = {1, 2, 3}}, {32, 4096}, 21);
  check({.length = 700, .blocks = 1, .k = 2, .local = {0, 5, 6}}, {144, 272}, 31);
}

TEST_P(ExpertsAsCodes, ValuesThatAreNotFiniteReachTheProductsOfTheirExpertAlone) {
  const ExpertsCase it{.length = 20, .blocks = 1, .k = 2, .local = {0, 3, 4}};
  const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, 5);
  const Selection host = select_rows(choices, it.local, 1), selection = select_rows(here(choices), it.local, 1);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(value);
    at::Tensor x = graded(host.room, 48, 6);
    const std::int64_t row = host.rows_of(1).first + 1;
    x[row][5].fill_(value);
    const auto [y, dx, dw] = products(here(x), here(graded(host.room, 32, 7)), here(graded(3 * 32, 48, 8)), selection);
    EXPECT_FALSE(y[row].isfinite().any().item<bool>());
    for (const std::int64_t expert : {0, 1, 2}) {
      const auto [begin, end] = host.rows_of(expert);
      EXPECT_EQ(y.narrow(0, begin, end - begin).isfinite().all().item<bool>(), expert != 1);
      EXPECT_EQ(dw.narrow(0, expert * 32, 32).isfinite().all().item<bool>(), expert != 1);
    }
  }
}

// A stored stack has the factors of the stack that it was made from.
TEST_P(ExpertsAsCodes, StoredStacksAreTheirOwnFactors) {
  constexpr std::int64_t kMatrices = 3, kOut = 32, kIn = 48;
  const at::Tensor w = here(graded(kMatrices * kOut, kIn, 1));
  const WholeScale scale = grouped_scales(kCode, amaxes_of_stack(w, kMatrices));
  const StackFactor decoded = decode_stack(w, kMatrices, kCode, scale);
  const at::Tensor codes = decoded.values.to(at::kFloat8_e4m3fn).view(at::kByte).contiguous();
  const StoredStack stack{{codes.mutable_data_ptr<std::uint8_t>(), scale.inverse.mutable_data_ptr<float>(), nullptr},
                          {.rows = kOut, .cols = kIn},
                          kMatrices,
                          kCode};
  EXPECT_TRUE(same_bits(stored_stack(stack, quant::ProductKernel::decoded, w.device()).values, decoded.values));
  const at::Tensor transposed = codes.view({kMatrices, kOut, kIn}).transpose(1, 2).contiguous();
  StoredStack copy = stack;
  copy.planes.data = transposed.mutable_data_ptr<std::uint8_t>();
  const StackFactor rows = stored_stack(stack, native, w.device()), columns = copied_stack(copy, w.device());
  for (const StackFactor* factor : {&rows, &columns}) {
    EXPECT_TRUE(same_bits(factor->whole, decoded.whole));
    EXPECT_EQ(factor->codes.defined(), on_gpu());
    if (!on_gpu()) EXPECT_TRUE(same_bits(factor->values, decoded.values));
  }
  if (!on_gpu()) return;
  EXPECT_TRUE(same_bits(rows.codes, codes.view({kMatrices, kOut, kIn})));
  EXPECT_TRUE(same_bits(columns.codes, transposed));
  EXPECT_TRUE(same_bits(code_stack(w, kMatrices, kCode, scale, Sides::rows).codes, rows.codes));
  EXPECT_TRUE(same_bits(code_stack(w, kMatrices, kCode, scale, Sides::columns).codes, transposed));
}

// ---- kernels

// Six matrices in 700 rows. The second and the last one have no rows, the fourth one has values that are not finite,
// and the last 20 rows belong to none.
constexpr std::int64_t kCodeMatrices = 6, kCodeRoom = 700, kCodeUnused = 20;
constexpr std::int32_t kCodeEnds[kCodeMatrices] = {5, 5, 21, 37, 680, 680};

// Returns the codes of one matrix; its amax is that of the matrix.
at::Tensor codes_of_matrix(const at::Tensor& matrix) {
  const Decoded decoded = definition(matrix, kCode);
  return decoded.bytes.to(at::kFloat8_e4m3fn).view(at::kByte);
}

class OnCudaCodes : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
  static at::Tensor here(const at::Tensor& host) { return host.to(at::Device(at::kCUDA, 0)); }

  // Casts rows to codes, in memory that was filled with 7. Returns the codes and the factors of rows.
  static std::pair<at::Tensor, at::Tensor> cast(const at::Tensor& rows, bool is_transposed) {
    const std::int64_t cols = rows.size(1), stride = kCodeRoom + 4 + kExpertRows * kCodeMatrices;
    const at::Tensor source = here(rows), ends = here(choices_tensor({kCodeEnds, kCodeEnds + kCodeMatrices}, 1)),
                     memory = here(at::zeros({2, kCodeMatrices}, at::kInt)),
                     amaxes = here(at::zeros({kCodeMatrices}, at::kFloat)),
                     partners = here(at::full({2}, 0.37F, at::kFloat)),
                     factors = here(at::full({kCodeRoom}, 7, at::kFloat));
    const at::Tensor codes =
        here(is_transposed ? at::full({cols, stride}, 7, at::kByte) : at::full({kCodeRoom, cols}, 7, at::kByte));
    const StackedRows from{.values = static_cast<const quant::bfloat16*>(source.const_data_ptr()),
                           .room = kCodeRoom,
                           .cols = cols,
                           .matrices = kCodeMatrices,
                           .ends = ends.const_data_ptr<std::int32_t>()};
    auto* places_memory = memory.mutable_data_ptr<std::int32_t>();
    const StripPlaces places{.strip_ends = places_memory, .result_ends = places_memory + kCodeMatrices};
    const base::CudaStream stream = stream_of(source);
    base::cuda_only<cuda::find_places>(from, 16, places, stream, 0);
    base::cuda_only<cuda::take_grouped_amaxes>(
        {.source = from, .places = places, .amaxes = amaxes.mutable_data_ptr<float>()}, stream);
    const WholeScale whole = grouped_scales(kCode, amaxes);
    base::cuda_only<cuda::find_places>(from, kCodeStrip, places, stream, is_transposed ? 16 : 0);
    base::cuda_only<cuda::cast_codes>({.source = from,
                                       .places = places,
                                       .scales = {.values = whole.multiplier.const_data_ptr<float>()},
                                       .codes = codes.mutable_data_ptr<std::uint8_t>(),
                                       .is_transposed = is_transposed,
                                       .stride = stride,
                                       .factors = is_transposed ? nullptr : factors.mutable_data_ptr<float>(),
                                       .own = {.values = whole.inverse.const_data_ptr<float>()},
                                       .partner = {.values = partners.const_data_ptr<float>()},
                                       .per_expert = kCodeMatrices / 2},
                                      stream);
    return {codes.cpu(), factors.cpu()};
  }
};
constexpr std::int64_t kCodeColumns[] = {16, 48, 128, 272, 1040};

at::Tensor spoiled_rows(std::int64_t cols) {
  at::Tensor rows = random_tensor({kCodeRoom, cols}, 1, at::kBFloat16);
  rows[25][3].fill_(std::numeric_limits<double>::infinity());
  rows[30][cols - 1].fill_(std::numeric_limits<double>::quiet_NaN());
  rows.narrow(0, kCodeRoom - kCodeUnused, kCodeUnused).fill_(std::numeric_limits<double>::quiet_NaN());
  return rows;
}

// The magnitudes of codes of NaNs are 0x7F; their signs are not compared.
void expect_codes(const at::Tensor& got, const at::Tensor& matrix, std::int64_t number) {
  if (matrix.size(0) == 0) return;
  const at::Tensor expected = codes_of_matrix(matrix);
  const at::Tensor is_nan = matrix.isnan();
  EXPECT_TRUE(((got == expected) | is_nan).all().item<bool>()) << "matrix " << number;
  EXPECT_TRUE(((got.bitwise_and(0x7F) == 0x7F) | ~is_nan).all().item<bool>()) << "matrix " << number;
}

TEST_F(OnCudaCodes, RowsHaveTheCodesOfTheirMatrices) {
  for (const std::int64_t cols : kCodeColumns) {
    SCOPED_TRACE(cols);
    const at::Tensor rows = spoiled_rows(cols);
    const auto [codes, factors] = cast(rows, false);
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < kCodeMatrices; ++i) {
      const std::int64_t size = kCodeEnds[i] - begin;
      const at::Tensor matrix = rows.narrow(0, begin, size);
      expect_codes(codes.narrow(0, begin, size), matrix, i);
      if (size > 0) {
        const float alpha = definition(matrix, kCode).number * 0.37F;
        const at::Tensor own = factors.narrow(0, begin, size);
        EXPECT_TRUE((std::isnan(alpha) ? own.isnan() : own == alpha).all().item<bool>()) << "matrix " << i;
      }
      begin += size;
    }
    EXPECT_TRUE((codes.narrow(0, begin, kCodeUnused) == 7).all().item<bool>());
    EXPECT_TRUE((factors.narrow(0, begin, kCodeUnused) == 7).all().item<bool>());
  }
}

TEST_F(OnCudaCodes, TransposedMatricesHaveZerosBetween) {
  for (const std::int64_t cols : kCodeColumns) {
    SCOPED_TRACE(cols);
    const at::Tensor rows = spoiled_rows(cols), codes = cast(rows, true).first.t();
    std::int64_t begin = 0, to = 0;
    for (std::int64_t i = 0; i < kCodeMatrices; ++i) {
      const std::int64_t size = kCodeEnds[i] - begin, spread = std::max<std::int64_t>(16, (size + 15) / 16 * 16);
      expect_codes(codes.narrow(0, to, size), rows.narrow(0, begin, size), i);
      EXPECT_EQ(codes.narrow(0, to + size, spread - size).count_nonzero().item<std::int64_t>(), 0) << "matrix " << i;
      begin += size;
      to += spread;
    }
    EXPECT_TRUE((codes.narrow(0, to, codes.size(0) - to) == 7).all().item<bool>()) << "rows after the last matrix";
  }
}

// The shapes for which a table chooses codes, and a small one.
TEST(OnCudaCodesOf, ProductsDoNotDependOnOtherExperts) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  const at::Device device(at::kCUDA, 0);
  for (const auto& [out, in] :
       {std::pair<std::int64_t, std::int64_t>{64, 128}, {28672, 4096}, {4096, 14336}, {1536, 2048}, {2048, 768}})
    EXPECT_NO_THROW(check_companions({.out = out,
                                      .in = in,
                                      .format = Format::fp8,
                                      .recipe = quant::Fp8Recipe::e4m3,
                                      .kernels = {native, native, native}},
                                     device))
        << out << " x " << in;
}

// ---- dry runs and errors

TEST(ExpertsAsCodesOfADryRun, ReportFp8Products) {
  const Selection dry = select_rows(dry_tensor({8, 2}, at::kInt), {.first = 0, .count = 3, .all = 6}, 2);
  const at::Tensor x = dry_tensor({dry.room, 48}, at::kBFloat16), dy = dry_tensor({dry.room, 32}, at::kBFloat16),
                   w = dry_tensor({96, 48}, at::kBFloat16);
  at::Tensor dw = dry_tensor({96, 48}, at::kBFloat16);
  const std::vector<Work> works = work_of([&] {
    const WholeScale whole = grouped_scales(kCode, amaxes_of_stack(w, 3));
    const RowQuantization as{.encoding = kCode,
                             .whole = grouped_scales(kCode, amaxes_of_rows(x, dry, RowMatrices::blocks))};
    const RowQuantization of_experts{.encoding = kCode,
                                     .whole = grouped_scales(kCode, amaxes_of_rows(x, dry, RowMatrices::experts))};
    EXPECT_EQ(grouped_fprop(x, as, code_stack(w, 3, kCode, whole, Sides::rows), dry).sizes(),
              (at::IntArrayRef{dry.room, 32}));
    EXPECT_EQ(grouped_dgrad(dy, as, code_stack(w, 3, kCode, whole, Sides::columns), dry).sizes(),
              (at::IntArrayRef{dry.room, 48}));
    grouped_wgrad({.rows = dy, .as = of_experts}, {.rows = x, .as = of_experts}, dry, dw, false, native);
  });
  std::vector<bool> fast;
  double quantize = 0;
  for (const Work& work : works) {
    if (work.kind == WorkKind::product) {
      fast.push_back(work.product.fast);
      EXPECT_EQ(work.product.format, Format::fp8);
      EXPECT_EQ(work.flops, static_cast<double>(2 * dry.expected * 32 * 48));
    } else if (std::string_view(work.name) == "quantize") {
      quantize += work.bytes;
    }
  }
  EXPECT_THAT(fast, testing::ElementsAre(true, false, false));
  EXPECT_EQ(quantize, 3.0 * static_cast<double>(dry.expected) * 2 * (48 + 32) + 3.0 * 2 * 96 * 48);
}

TEST(ExpertsAsCodesErrors, NameSizesAndEncodings) {
  const Selection dry = select_rows(dry_tensor({8, 2}, at::kInt), {.first = 0, .count = 3, .all = 6}, 2);
  const at::Tensor odd = dry_tensor({96, 40}, at::kBFloat16), w = dry_tensor({96, 48}, at::kBFloat16);
  const auto code = [&](const at::Tensor& stack, const Encoding& encoding) {
    return code_stack(stack, 3, encoding, grouped_scales(encoding, amaxes_of_stack(stack, 3)), Sides::rows);
  };
  EXPECT_NO_THROW(code(w, kCode));
  EXPECT_THROW(code(odd, kCode), Error);
  EXPECT_THROW(code(w, gradient_encoding(Format::fp8, quant::Fp8Recipe::hybrid)), Error);
  EXPECT_THROW(code(w, weight_encoding(Format::fp8_block)), Error);
  const at::Tensor narrow = dry_tensor({dry.room, 32}, at::kBFloat16);
  const RowQuantization as{.encoding = kCode,
                           .whole = grouped_scales(kCode, amaxes_of_rows(narrow, dry, RowMatrices::blocks))};
  EXPECT_THROW(grouped_fprop(narrow, as, code(w, kCode), dry), Error);
}

}  // namespace
}  // namespace tessera::ops::test::formats
