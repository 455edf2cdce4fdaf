#include "tessera/checkpoint/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::checkpoint {
namespace {

// The published XXH3-128 value of empty input, and the output of `printf abc | xxhsum -H2`.
TEST(Hash, MatchesTheReferenceProgram) {
  EXPECT_EQ(hash_of("", 0), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_of("abc", 3), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, DoesNotDependOnTheDivisionIntoUpdates) {
  std::string bytes(10007, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 256);
  const std::string whole = hash_of(bytes.data(), bytes.size());
  for (const std::size_t step : {1u, 7u, 64u, 1000u, 9999u}) {
    Hasher hasher;
    for (std::size_t at = 0; at < bytes.size(); at += step)
      hasher.update(bytes.data() + at, std::min(step, bytes.size() - at));
    EXPECT_EQ(hasher.hex(), whole) << step;
  }
  bytes[5000] ^= 1;
  EXPECT_NE(hash_of(bytes.data(), bytes.size()), whole);
}

}  // namespace
}  // namespace tessera::checkpoint
