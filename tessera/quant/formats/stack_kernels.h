// How the products of a stack of matrices, such as those of experts, are computed.
//
//   y = x w^T (fprop)     dx = dy w (dgrad)     dw = dy^T x (wgrad)     each matrix w [out, in] with its own rows
//
// Each product multiplies decoded values (decoded.h), except products in fp8 on a GPU: there libtorch multiplies e4m3
// codes, if `out` and `in` are multiples of kCodesMultiple. Its kernels do not accept e5m2. The quantized numbers are
// the same in both cases.
#pragma once
#include <array>
#include <cstdint>

#include "tessera/quant/formats/product_kernel.h"

namespace tessera::quant {

struct StackKernels {
  ProductKernel fprop = ProductKernel::decoded, dgrad = ProductKernel::decoded, wgrad = ProductKernel::decoded;

  auto operator<=>(const StackKernels&) const = default;
  constexpr bool are_native() const {
    return fprop == ProductKernel::native && dgrad == ProductKernel::native && wgrad == ProductKernel::native;
  }
};

inline constexpr std::int64_t kCodesMultiple = 16;  // bytes: the alignment of a row of codes

// A product of a stack with matrices [out, in] multiplies codes if it is faster.
struct StackSpeeds {
  std::int64_t out, in;
  bool fprop, dgrad, wgrad;
};
// Products whose codes are faster than decoded values on an H100 at 8192 tokens. fprop adds with fewer bits; dgrad and
// wgrad add in fp32. First the matrices of Mixtral-8x7B, then those of Qwen3-30B-A3B.
inline constexpr std::array<StackSpeeds, 4> kFasterCodes{{{28672, 4096, true, true, true},
                                                          {4096, 14336, true, true, true},
                                                          {1536, 2048, true, false, false},
                                                          {2048, 768, true, false, false}}};

struct StackChoice {
  Fp8Recipe recipe = Fp8Recipe::hybrid;
  bool only_native = false;  // true: each product that can multiply codes does so

  bool operator==(const StackChoice&) const = default;
};

// Returns the kernels of a GPU for matrices [out, in]. Products in bf16 are native.
constexpr StackKernels stack_kernels(Format format, const StackChoice& choice, std::int64_t out, std::int64_t in) {
  using enum ProductKernel;
  if (format == Format::bf16) return {native, native, native};
  if (format != Format::fp8 || out == 0 || in == 0 || out % kCodesMultiple != 0 || in % kCodesMultiple != 0) return {};
  StackSpeeds faster{out, in, choice.only_native, choice.only_native, choice.only_native};
  for (const StackSpeeds& it : kFasterCodes)
    if (!choice.only_native && it.out == out && it.in == in) faster = it;
  const auto kernel = [&](bool is_faster, bool has_codes) { return is_faster && has_codes ? native : decoded; };
  const bool has_codes = choice.recipe == Fp8Recipe::e4m3;  // of gradients
  return {kernel(faster.fprop, true), kernel(faster.dgrad, has_codes), kernel(faster.wgrad, has_codes)};
}

}  // namespace tessera::quant
