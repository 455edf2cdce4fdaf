#include "tessera/base/text/printable.h"

#include <gtest/gtest.h>

#include "tessera/base/json_file.h"
#include "tests/base/files.h"

namespace tessera::base {
namespace {

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("model.norm.weight ~ \\ 'x'"), "model.norm.weight ~ \\ 'x'");
  EXPECT_EQ(printable("\u00e9\u4e16\U0001F600\u00a0\uffff\U0010ffff"), "\u00e9\u4e16\U0001F600\u00a0\uffff\U0010ffff");
  EXPECT_EQ(printable("a\nb\t\x1b[2J\x7f"), "a\\x0ab\\x09\\x1b[2J\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xc2\x85"), "\\xc2\\x85");  // a control character of two bytes
}

TEST(Printable, EscapesInvalidUtf8) {
  EXPECT_EQ(printable("\x80\xff\xfe"), "\\x80\\xff\\xfe");
  EXPECT_EQ(printable("a\xe4"
                      "b"),
            "a\\xe4b");                                              // Latin-1
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // an encoding with too many bytes
  EXPECT_EQ(printable("\xe0\x9f\xbf"), "\\xe0\\x9f\\xbf");           // an encoding with too many bytes
  EXPECT_EQ(printable("\xf0\x8f\xbf\xbf"), "\\xf0\\x8f\\xbf\\xbf");  // an encoding with too many bytes
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(printable("\xe4\xb8"), "\\xe4\\xb8");                    // an incomplete character
}

TEST(InvalidUtf8, IsFoundAtItsFirstByte) {
  EXPECT_EQ(invalid_utf8(""), std::nullopt);
  EXPECT_EQ(invalid_utf8("a\nb\u00e9\u4e16\U0001F600\x7f"), std::nullopt);
  EXPECT_EQ(invalid_utf8(std::string_view("\0", 1)), std::nullopt);
  EXPECT_EQ(invalid_utf8("\u00e9\xff"), 2u);
  EXPECT_EQ(invalid_utf8("ab\xe4\xb8"), 2u);              // an incomplete character
  EXPECT_EQ(invalid_utf8("\xed\xa0\x80"), 0u);            // a surrogate
  EXPECT_EQ(invalid_utf8("\u00e9\xf4\x90\x80\x80"), 2u);  // beyond U+10FFFF
}

TEST(JsonFiles, AreQuotedInPrintableCharacters) {
  for (const char* text : {"{\"a\xff\": 1}", "\x80\xff", "{\"a\": \x1b}", "{\"a\": \n \xc3}"}) {
    const TempFile file(text);
    const std::string message = refusal([&] { read_json_file(file.path()); });
    EXPECT_EQ(message, printable(message));
    EXPECT_NE(message.find("settings.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::base
