// Checks random bits and hashes of names against published answers.
#include "tessera/base/philox.h"

#include <gtest/gtest.h>

#include "tessera/base/text/name_hash.h"

namespace tessera::base {
namespace {

// Known answers that were published with the generator (Random123, kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
  constexpr std::uint32_t ones = 0xFFFFFFFFu;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}));
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxCounter{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}));
  EXPECT_EQ(philox({0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}, {0xA4093822u, 0x299F31D0u}),
            (PhiloxCounter{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}));
}

// Test vectors that were published with the hash (Noll, test_fnv.c).
TEST(NameHash, GivesThePublishedAnswers) {
  EXPECT_EQ(name_hash(""), 0xCBF29CE484222325u);
  EXPECT_EQ(name_hash("a"), 0xAF63DC4C8601EC8Cu);
  EXPECT_EQ(name_hash("foobar"), 0x85944171F73967E8u);
}

}  // namespace
}  // namespace tessera::base
