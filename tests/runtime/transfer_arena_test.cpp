#include "tessera/runtime/transfers/transfer_arena.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace tessera::runtime {
namespace {

// The addresses of a program that holds three ranges and reuses bytes.
std::vector<std::byte*> addresses(TransferArena& arena) {
  TransferMemory a = arena.take(1000), b = arena.take(1);
  std::vector<std::byte*> seen{a.data, b.data};
  a.hold.reset();
  const TransferMemory c = arena.take(300), d = arena.take(600), e = arena.take(2000);
  seen.insert(seen.end(), {c.data, d.data, e.data});
  return seen;
}

TEST(TransferArena, AllocatesWhatAnEarlierStepNeeded) {
  const auto arena = std::make_shared<TransferArena>(base::Device{});
  EXPECT_FALSE(arena->was_used());
  EXPECT_EQ(addresses(*arena), std::vector<std::byte*>(5));  // no memory yet
  EXPECT_TRUE(arena->was_used());
  EXPECT_EQ(arena->peak(), 1024 + 256 + 768 + 2048);  // `d` does not fit beside `c` in the bytes of `a`
  arena->grow();
  EXPECT_EQ(arena->memory().size(), static_cast<std::size_t>(arena->peak()));
  const std::byte* base = arena->memory().data();
  const std::vector<std::byte*> first = addresses(*arena);
  std::vector<std::ptrdiff_t> offsets;
  for (const std::byte* address : first) offsets.push_back(address - base);
  EXPECT_EQ(offsets, (std::vector<std::ptrdiff_t>{0, 1024, 0, 1280, 2048}));
  EXPECT_EQ(addresses(*arena), first);
}

TEST(TransferArena, GivesNoMemoryBeyondItsEnd) {
  const auto arena = std::make_shared<TransferArena>(base::Device{});
  arena->take(512);
  arena->grow();
  TransferMemory first = arena->take(256);
  EXPECT_NE(first.hold, nullptr);
  EXPECT_TRUE(arena->contains(first.data));
  EXPECT_FALSE(arena->contains(arena->memory().data() + arena->memory().size()));
  EXPECT_NE(arena->take(256).data, nullptr);
  EXPECT_EQ(arena->take(257).data, nullptr);
  EXPECT_NE(arena->take(0).data, nullptr);
  const std::int64_t before = static_cast<std::int64_t>(arena->memory().size());
  arena->grow();  // a range is in use
  EXPECT_EQ(static_cast<std::int64_t>(arena->memory().size()), before);
  first.hold.reset();
  arena->grow();
  EXPECT_EQ(static_cast<std::int64_t>(arena->memory().size()), arena->peak());
}

TEST(TransferArena, OutlivesItsOwnerWhileARangeIsHeld) {
  auto arena = std::make_shared<TransferArena>(base::Device{});
  arena->take(256);
  arena->grow();
  const TransferMemory held = arena->take(256);
  arena.reset();
  *held.data = std::byte{1};
}

}  // namespace
}  // namespace tessera::runtime
