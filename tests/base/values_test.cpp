// bfloat16, element types, buffers, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <thread>

#include "tessera/base/bfloat16.h"
#include "tessera/base/buffer.h"
#include "tessera/base/dtype.h"
#include "tessera/base/error.h"
#include "tessera/base/scratch.h"

// Under a sanitizer, memory that cannot be had gives null as it does elsewhere, and not the end of the program.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the sanitizers' names
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace tessera::base {
namespace {

float from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Bfloat16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bfloat16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(wide))));
      continue;
    }
    ASSERT_EQ(bfloat16(wide).bits, bits);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide), bits << 16);
  }
}

// Between every bf16 value and the next one (in bits): below the middle down, above up, the middle to the even one.
TEST(Bfloat16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    if ((high & 0x7FFF) >= 0x7F80) continue;  // infinity, NaN
    const std::uint32_t low = high << 16;
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x0001)), high);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x7FFF)), high);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x8000)), high + high % 2);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x8001)), high + 1);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0xFFFF)), high + 1);
  }
}

TEST(Bfloat16, KeepsWhatIsNoNumber) {
  // Rounding the low bits of these up would give infinity, or zero.
  for (const std::uint32_t bits : {0x7F800001u, 0x7FBFFFFFu, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u}) {
    const bfloat16 value(from_bits(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(value))) << bits;
    EXPECT_EQ(value.bits >> 15, bits >> 31);
  }
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(bfloat16(-0.0f).bits, 0x8000);
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
}

TEST(DType, NamesReadBack) {
  std::set<std::string_view> names;
  for (const DType type : {DType::u8, DType::i32, DType::i64, DType::bf16, DType::fp32, DType::fp64}) {
    EXPECT_EQ(parse_dtype(name_of(type)), type);
    names.insert(name_of(type));
  }
  EXPECT_EQ(names.size(), 6u);
  try {
    parse_dtype("fp16");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("fp16"), testing::HasSubstr("bf16")));
  }
}

TEST(DType, SizesAndAccumulators) {
  EXPECT_EQ(size_of(DType::u8), sizeof(std::uint8_t));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bfloat16));
  EXPECT_EQ(size_of(DType::i32), sizeof(std::int32_t));
  EXPECT_EQ(size_of(DType::fp32), sizeof(float));
  EXPECT_EQ(size_of(DType::i64), sizeof(std::int64_t));
  EXPECT_EQ(size_of(DType::fp64), sizeof(double));
  EXPECT_EQ(accumulator_of(DType::bf16), DType::fp32);
  EXPECT_EQ(accumulator_of(DType::fp32), DType::fp32);
  EXPECT_EQ(accumulator_of(DType::fp64), DType::fp64);
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_FALSE(is_floating(DType::i64));
}

TEST(Buffer, IsAlignedAndNeverNull) {
  for (const std::size_t bytes : {0, 1, 255, 256, 257, 100000}) {
    const Buffer buffer(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment, 0u);
  }
}

TEST(Buffer, MovesAndFills) {
  Buffer buffer(24);
  buffer.fill_zero();
  buffer.as<double>()[2] = 1.5;
  const std::byte* data = buffer.data();
  const Buffer moved = std::move(buffer);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.as<double>().size(), 3u);
  EXPECT_EQ(moved.as<double>()[2], 1.5);
  EXPECT_EQ(moved.as<double>()[0], 0.0);
}

TEST(Buffer, SaysHowMuchWasAskedForWhenMemoryIsShort) {
  try {
    const Buffer buffer(std::size_t{1} << 60);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("1152921504606846976 bytes"));
  }
}

TEST(ScratchPool, ServesWhatWasGivenBack) {
  auto pool = std::make_shared<ScratchPool>(Device{});
  const std::byte* large = nullptr;
  std::set<const std::byte*> made;
  {
    Scratch first = pool->take(5000), second = pool->take(100), empty = pool->take(0);
    large = first.data();
    made = {large, second.data(), empty.data()};
    EXPECT_EQ(made.size(), 3u);
    EXPECT_EQ(first.size(), 5000u);
    EXPECT_EQ(empty.size(), 0u);
    for (const Scratch* one : {&first, &second, &empty})
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one->data()) % kAlignment, 0u);
    std::fill_n(first.data(), first.size(), std::byte{1});
    Scratch moved = std::move(first);
    EXPECT_EQ(moved.data(), large);
  }
  {
    const Scratch one = pool->take(1), two = pool->take(256), three = pool->take(257);
    EXPECT_EQ(three.data(), large);  // the smallest that is large enough
    EXPECT_EQ(std::set<const std::byte*>({one.data(), two.data(), three.data()}), made);
  }
  const Scratch again = pool->take(8192);  // as much as 5000 were rounded up to
  EXPECT_EQ(again.data(), large);
  EXPECT_NE(pool->take(8192).data(), large);
  for (const std::size_t bytes : {std::size_t{1} << 60, ~std::size_t{0}}) EXPECT_THROW(pool->take(bytes), Error);
}

TEST(ScratchPool, OutlivesItsOwnerAndServesThreads) {
  auto pool = std::make_shared<ScratchPool>(Device{});
  const Scratch kept = pool->take(1000);
  std::vector<std::thread> threads;
  for (unsigned char value = 0; value < 4; ++value)
    threads.emplace_back([&pool, value] {
      for (std::size_t i = 0; i < 200; ++i) {
        Scratch mine = pool->take(i * 7);
        std::fill_n(mine.data(), mine.size(), std::byte{value});
        for (std::size_t at = 0; at < mine.size(); ++at) ASSERT_EQ(mine.data()[at], std::byte{value});
      }
    });
  for (std::thread& thread : threads) thread.join();
  pool = nullptr;
}

TEST(AlignUp, RoundsUpToTheAlignment) {
  EXPECT_EQ(align_up(0), 0u);
  EXPECT_EQ(align_up(1), 256u);
  EXPECT_EQ(align_up(256), 256u);
  EXPECT_EQ(align_up(257, 4), 260u);
}

TEST(Check, NamesPlaceConditionAndValues) {
  const int got = 3;
  try {
    TESSERA_CHECK(got == 4, "expected 4, got {}", got);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("expected 4, got 3"), testing::HasSubstr("got == 4"),
                                             testing::HasSubstr("values_test.cpp:")));
  }
}

}  // namespace
}  // namespace tessera::base
