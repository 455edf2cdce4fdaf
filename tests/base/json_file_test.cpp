#include "tessera/base/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text/printable.h"
#include "tests/base/files.h"

namespace tessera::base {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string repeated(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

// Returns arrays, or objects, in each other.
std::string nested(std::size_t depth, bool is_object) {
  return is_object ? repeated("{\"a\":", depth) + "1" + repeated("}", depth)
                   : repeated("[", depth) + repeated("]", depth);
}

TEST(Json, DeepNestingIsRefused) {
  for (const bool is_object : {false, true}) {
    EXPECT_EQ(parse_json(nested(kMaxJsonDepth, is_object), "f").size(), 1u);
    EXPECT_EQ(parse_ordered_json(nested(kMaxJsonDepth, is_object), "f").size(), 1u);
    for (const std::size_t depth : {std::size_t{kMaxJsonDepth} + 1, std::size_t{100'000}, std::size_t{1'000'000}}) {
      const std::string text = nested(depth, is_object);
      const TempFile file(text);
      EXPECT_EQ(refusal([&] { parse_json(text, "f"); }),
                "f: nests more than 100 levels of arrays and objects, expected fewer");
      EXPECT_THAT(refusal([&] { parse_ordered_json(text, "f"); }), HasSubstr("f: nests more than 100 levels"));
      EXPECT_THAT(refusal([&] { read_json_file(file.path()); }),
                  StartsWith(file.path() + ": nests more than 100 levels"));
      EXPECT_TRUE(is_json(text));
    }
  }
  EXPECT_THAT(refusal([] { parse_json(repeated("[", 100'000), "f"); }), HasSubstr("nests more than 100 levels"));
}

TEST(Json, InvalidTextAndRepeatedKeysAreRefused) {
  EXPECT_THAT(refusal([] { parse_json("[1,", "f"); }),
              StartsWith("f: not valid JSON: parse error at line 1, column 4"));
  EXPECT_EQ(refusal([] { parse_json(R"({"a": 1, "b": {"a": 2}, "a": 3})", "f"); }), "f: key \"a\" is given twice");
  EXPECT_FALSE(is_json("[1,"));
  // The parser's reason contains the word at which it stopped.
  const std::string message = refusal([] { parse_json("[\"" + std::string(100'000, 'x'), "f"); });
  EXPECT_THAT(message, HasSubstr("f: not valid JSON: parse error"));
  EXPECT_LT(message.size(), 250u);
}

// Some devices never end.
TEST(JsonFiles, DevicesAreNotRead) {
  EXPECT_EQ(refusal([] { read_json_file("/dev/zero"); }), "/dev/zero: is a device, expected a JSON file");
}

// In quadratic time this test would take a quarter of an hour.
TEST(Json, ManyObjectsTakeLinearTime) {
  constexpr std::size_t kObjects = 300'000;
  std::string array = "[", object = "{";
  for (std::size_t i = 0; i < kObjects; ++i) {
    array += i > 0 ? ",{}" : "{}";
    object += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
  }
  EXPECT_EQ(parse_json(array + "]", "f").size(), kObjects);
  EXPECT_EQ(parse_json(object + "}", "f").size(), kObjects);
  EXPECT_EQ(parse_ordered_json(array + "]", "f").size(), kObjects);
}

TEST(Json, MessagesShowTheBeginningOfAValue) {
  EXPECT_EQ(shown(nlohmann::json::parse(R"({"a": [1, -2.5, true, null], "b": {"c": "d\u00e9\n"}, "e": {}})")),
            "{\"a\":[1,-2.5,true,null],\"b\":{\"c\":\"d\\u00e9\\n\"},\"e\":{}}");
  EXPECT_EQ(shown("\xff"), "\"\\ufffd\"");
  for (const nlohmann::json& large : {nlohmann::json(std::string(10'000'000, 'x')), nlohmann::json(1'000'000, 0),
                                      nlohmann::json(1000, {{std::string(1000, 'k'), {1, 2}}})}) {
    EXPECT_EQ(shown(large).size(), 80u);
    EXPECT_THAT(shown(large), EndsWith("..."));
  }
}

TEST(Excerpt, IsPrintableAndHasALimit) {
  EXPECT_EQ(excerpt("a\nb"), "a\\x0ab");
  EXPECT_EQ(excerpt(std::string(100, 'x')), std::string(100, 'x'));
  EXPECT_EQ(excerpt(std::string(101, 'x')), std::string(97, 'x') + "...");
  EXPECT_EQ(excerpt("abcdef", 5), "ab...");
  EXPECT_EQ(excerpt("\n\n\n", 9), "\\x0a...");               // an escaped byte is not divided
  EXPECT_EQ(excerpt("\u00e9\u00e9\u00e9", 5), "\u00e9...");  // nor is a character
}

}  // namespace
}  // namespace tessera::base
