// Tests rules that give values to names.
#include "tessera/base/text/name_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::base {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Rules = std::vector<NameRule<std::string>>;

TEST(NameRules, AreSplitAtCommas) {
  EXPECT_EQ(split_name_rules("a.*=1,b=x=y,c=", "--f", "N"), (Rules{{"a.*", "1"}, {"b", "x=y"}, {"c", ""}}));
  EXPECT_TRUE(split_name_rules("", "--f", "N").empty());
  for (const char* text : {"a", "=1", "a=1,,b=2", "a=1,b"})
    EXPECT_THAT([&] { split_name_rules(text, "--f", "N"); },
                ThrowsMessage<InputError>(HasSubstr("expected PATTERN=N,PATTERN=N,...")))
        << text;
}

TEST(NameRules, TheLastMatchDecides) {
  const Rules rules{{"*", "1"}, {"a.*", "2"}, {"*.b", "3"}, {"a.[0-9]", "4"}};
  const auto value = [&](const char* name) { return rule_of(rules, name)->value; };
  EXPECT_EQ(value("c"), "1");
  EXPECT_EQ(value("a.c"), "2");
  EXPECT_EQ(value("a.b"), "3");
  EXPECT_EQ(value("a.7"), "4");
  EXPECT_EQ(rule_of(Rules{{"a", "1"}}, "b"), nullptr);
  EXPECT_EQ(rule_of(Rules{}, "b"), nullptr);
}

TEST(NameRules, MessagesNameTheRule) {
  const auto parse = [](std::string_view text) -> int {
    if (text != "1") throw InputError("got '{}', expected 1", text);
    return 1;
  };
  EXPECT_EQ(parse_name_rules("a=1,b=1", "--f", "N", parse), (std::vector<NameRule<int>>{{"a", 1}, {"b", 1}}));
  EXPECT_THAT([&] { parse_name_rules("a=1,b=2", "--f", "N", parse); },
              ThrowsMessage<InputError>(HasSubstr("--f: in 'b=2': got '2', expected 1")));
}

TEST(NameRules, MustMatchANameAndHaveAnEffect) {
  const std::vector<std::string> names{"layers.0.up", "layers.1.up", "norm"};
  EXPECT_NO_THROW(check_name_rules(Rules{{"*", "1"}, {"norm", "2"}}, names, "--f", "a weight"));
  EXPECT_THAT(
      [&] {
        check_name_rules(Rules{{"down", "1"}}, names, "--f", "a weight");
      },
      ThrowsMessage<InputError>(HasSubstr("--f: got down=1, expected the name of a weight: layers.*.up, norm")));
  EXPECT_THAT(
      [&] {
        check_name_rules(Rules{{"norm", "1"}, {"*", "2"}}, names, "--f", "a weight");
      },
      ThrowsMessage<InputError>(HasSubstr("--f: got norm=1, which has no effect")));
}

}  // namespace
}  // namespace tessera::base
