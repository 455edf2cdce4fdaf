#include "tessera/data/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/files.h"

namespace tessera::data {
namespace {
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

std::string sets_text(const Words& words) {
  std::string text;
  for (const HeldOutSet& set : parse_held_out(words, "--valid")) {
    text += set.name + ":";
    for (const std::string& word : set.blend) text += " " + word;
    text += ";";
  }
  return text;
}

TEST(HeldOut, NamesBeginSets) {
  EXPECT_EQ(sets_text({}), "");
  EXPECT_EQ(sets_text({"a"}), ": a;");
  EXPECT_EQ(sets_text({"0.5", "a", "0.5", "b"}), ": 0.5 a 0.5 b;");
  EXPECT_EQ(sets_text({"a", "code=x/y", "A_b-1.2=3", "c", "1", "d"}), ": a;code: x/y;A_b-1.2: 3 c 1 d;");
}

TEST(HeldOut, PathsWithAnEqualsSignHaveASlashBeforeIt) {
  EXPECT_EQ(sets_text({"./a=b", "x/y=z", "=c", "a b=c"}), ": ./a=b x/y=z =c a b=c;");
  EXPECT_EQ(sets_text({"n=m=k"}), "n: m=k;");
}

TEST(HeldOut, RefusesRepeatedNamesAndNamesWithoutAPath) {
  EXPECT_THAT(base::refusal([] {
                parse_held_out({"a", "x=b", "y=c", "x=d"}, "--valid");
              }),
              HasSubstr("--valid: set 'x' is given twice"));
  EXPECT_THAT(base::refusal([] { parse_held_out({"x=", "b"}, "--valid"); }), HasSubstr("nothing follows 'x='"));
}

}  // namespace
}  // namespace tessera::data
