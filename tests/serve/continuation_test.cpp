// Tests the text that follows a prompt.
#include <gtest/gtest.h>

#include "tessera/serve/generate_text.h"

namespace tessera::serve {
namespace {

TEST(Continuation, IsTheTextBehindThePrompt) {
  EXPECT_EQ(continuation_of("the river", "the river flows"), " flows");
  EXPECT_EQ(continuation_of("", "flows"), "flows");
  EXPECT_EQ(continuation_of("the river", "the river"), "");
}

// The last token of the prompt is a part of a character, or of a word that changes.
TEST(Continuation, StartsAtTheFirstCharacterThatDiffers) {
  EXPECT_EQ(continuation_of("caf\uFFFD", "caf\u00e9 au"), "\u00e9 au");
  EXPECT_EQ(continuation_of("\u4e16\uFFFD\uFFFD", "\u4e16\u754c!"), "\u754c!");
  EXPECT_EQ(continuation_of("x\uFFFD", "x\uFF01"), "\uFF01");  // the first bytes of both characters are equal
  EXPECT_EQ(continuation_of("a\u00e8", "a\u00e9"), "\u00e9");
  EXPECT_EQ(continuation_of("do n", "don't"), "n't");
  EXPECT_EQ(continuation_of("long", "lo"), "");
}

}  // namespace
}  // namespace tessera::serve
