// Tests which products of stacks multiply codes.
#include "tessera/quant/formats/stack_kernels.h"

#include <gtest/gtest.h>

namespace tessera::quant {
namespace {

using enum ProductKernel;

TEST(StackKernels, AreChosenBySpeed) {
  const StackChoice hybrid{}, e4m3{.recipe = Fp8Recipe::e4m3};
  EXPECT_EQ(stack_kernels(Format::fp8, hybrid, 28672, 4096), (StackKernels{native, decoded, decoded}));
  EXPECT_EQ(stack_kernels(Format::fp8, e4m3, 28672, 4096), (StackKernels{native, native, native}));
  EXPECT_EQ(stack_kernels(Format::fp8, e4m3, 2048, 768), (StackKernels{native, decoded, decoded}));
  EXPECT_EQ(stack_kernels(Format::fp8, e4m3, 64, 64), StackKernels());
  EXPECT_EQ(stack_kernels(Format::nvfp4, e4m3, 28672, 4096), StackKernels());
  EXPECT_EQ(stack_kernels(Format::bf16, {}, 5, 3), (StackKernels{native, native, native}));
}

TEST(StackKernels, AreNativeOnRequestWhereCodesExist) {
  const StackChoice e4m3{.recipe = Fp8Recipe::e4m3, .only_native = true}, hybrid{.only_native = true};
  EXPECT_TRUE(stack_kernels(Format::fp8, e4m3, 64, 48).are_native());
  EXPECT_EQ(stack_kernels(Format::fp8, hybrid, 64, 48), (StackKernels{native, decoded, decoded}));
  EXPECT_EQ(stack_kernels(Format::fp8, e4m3, 64, 40), StackKernels());
  EXPECT_EQ(stack_kernels(Format::fp8, e4m3, 72, 48), StackKernels());
  EXPECT_EQ(stack_kernels(Format::fp8, e4m3, 0, 48), StackKernels());
  EXPECT_EQ(stack_kernels(Format::mxfp8, e4m3, 64, 48), StackKernels());
  EXPECT_FALSE(stack_kernels(Format::fp8_block, e4m3, 64, 48).are_native());
}

// A stack is unpacked only if its forward product is decoded, so no other product may be native then.
TEST(StackKernels, ForwardProductsAreNativeIfAnotherIs) {
  for (const StackSpeeds& it : kFasterCodes) EXPECT_TRUE(it.fprop || (!it.dgrad && !it.wgrad));
}

}  // namespace
}  // namespace tessera::quant
