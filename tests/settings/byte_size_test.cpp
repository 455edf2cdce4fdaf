#include "tessera/settings/text/byte_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/schedule/plan/plan.h"

namespace tessera::settings {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ByteSize, IsParsedWithItsUnit) {
  EXPECT_EQ(parse_byte_size("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_byte_size("300MB"), 300'000'000);
  EXPECT_EQ(parse_byte_size("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_byte_size("17"), 17);
  for (const char* bad : {"", "GB", "5gb", "5 GB", "-1", "0", "1.5GB", "99999999999GB", "1GBx"})
    EXPECT_THAT([&] { parse_byte_size(bad); },
                ThrowsMessage<InputError>(HasSubstr("expected a size of at least 1 byte")))
        << bad;
}

TEST(ByteSize, ErrorsNameTheFlag) {
  EXPECT_EQ(parse_byte_size("3KB", "--x"), 3000);
  try {
    parse_byte_size("much", "--x");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(
        error.what(),
        "--x: 'much': expected a size of at least 1 byte and less than 8 EiB, such as 5GB, 300MB, 2GiB or a number "
        "of bytes");
  }
}

TEST(ByteSize, BudgetsAlsoAcceptWords) {
  EXPECT_EQ(parse_budget("min", "--x"), schedule::kMinimum);
  EXPECT_EQ(parse_budget("3KiB", "--x"), 3072);
  EXPECT_EQ(parse_budget("auto", "--x"), std::nullopt);
  EXPECT_THAT([&] { parse_budget("much", "--x"); },
              ThrowsMessage<InputError>(HasSubstr("--x: got 'much', expected min, auto, or bytes")));
}

}  // namespace
}  // namespace tessera::settings
