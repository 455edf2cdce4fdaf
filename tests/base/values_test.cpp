// Tests buffers, scratch and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/base/memory/out_of_memory.h"
#include "tessera/base/memory/scratch.h"

// Under a sanitizer, a failed allocation returns null, as in other builds, and does not end the program.
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

TEST(Buffer, IsAlignedAndNeverNull) {
  for (const std::size_t bytes : {0, 1, 255, 256, 257, 100000}) {
    const Buffer buffer(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment, 0u);
  }
}

TEST(Buffer, MayBorrowMemory) {
  Buffer owner(64);
  owner.fill_zero();
  {
    Buffer view = Buffer::borrowed(owner.data() + 16, 32, {});
    const Buffer moved = std::move(view);
    EXPECT_EQ(moved.data(), owner.data() + 16);
    EXPECT_EQ(moved.size(), 32u);
  }
  owner.data()[63] = std::byte{1};  // the memory still exists
  EXPECT_THROW(Buffer::borrowed(nullptr, 8, {}), Error);
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

TEST(Buffer, ReportsTheRequestedBytesIfMemoryIsShort) {
  try {
    const Buffer buffer(std::size_t{1} << 60);
    ADD_FAILURE();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("1152921504606846976 bytes"));
  }
}

// Returns "OutOfMemory: MESSAGE" or "Error: MESSAGE".
template <typename Call>
std::string kind_of_error(Call call) {
  try {
    call();
  } catch (const OutOfMemory& error) {
    return std::string("OutOfMemory: ") + error.what();
  } catch (const Error& error) {
    return std::string("Error: ") + error.what();
  }
  return "";
}

TEST(FailedAllocations, BecomeErrorsOfOneLine) {
  const std::string text = "out of memory: an allocation failed, expected smaller sizes or more memory";
  const auto too_long = [] { std::vector<int> list(std::numeric_limits<std::size_t>::max() / 2); };
  const auto too_large = [] { std::vector<char> list(std::size_t{1} << 60); };
  EXPECT_EQ(kind_of_error([&] { naming_failed_allocations(too_long); }), "OutOfMemory: " + text);
  EXPECT_EQ(kind_of_error([&] { naming_failed_allocations(too_large); }), "OutOfMemory: " + text);
  EXPECT_EQ(kind_of_error([&] { while_running(too_large); }), "Error: " + text);
  EXPECT_EQ(kind_of_error([&] { while_running([] { Buffer(std::size_t{1} << 60); }); }),
            "Error: out of memory: requested 1152921504606846976 bytes of host memory");
  EXPECT_EQ(naming_failed_allocations([] { return 3; }), 3);
}

TEST(ScratchPool, ReusesReturnedMemory) {
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
    EXPECT_EQ(three.data(), large);  // the smallest buffer that is large enough is reused
    EXPECT_EQ(std::set<const std::byte*>({one.data(), two.data(), three.data()}), made);
  }
  const Scratch again = pool->take(8192);  // 5000 bytes were rounded up to this size
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
