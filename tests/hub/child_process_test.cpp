#include "tessera/hub/tokenizer/child_process.h"

#include <gtest/gtest.h>

namespace tessera::hub {
namespace {

TEST(ChildProcess, ReadsItsInputAndReturnsItsOutput) {
  const std::string text(3'000'000, 'x');  // more than a socket holds
  const ChildResult echo = run_child({"sh", "-c", "input=$(cat; echo .); printf %s \"$input\""}, text);
  EXPECT_TRUE(echo.started);
  EXPECT_EQ(echo.code, 0);
  EXPECT_EQ(echo.output, text + ".");
}

TEST(ChildProcess, ReturnsTheExitCodeOrTheSignal) {
  EXPECT_EQ(run_child({"sh", "-c", "exit 7"}, "").code, 7);
  EXPECT_EQ(run_child({"sh", "-c", "kill -9 $$"}, "").code, 128 + 9);
}

TEST(ChildProcess, MayEndWithoutReading) {
  const ChildResult result = run_child({"sh", "-c", "echo done"}, std::string(3'000'000, 'x'));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output, "done\n");
}

TEST(ChildProcess, ThatDoesNotExistIsNotStarted) {
  for (const char* name : {"/nonexistent/program", "tessera-has-no-such-program", "/etc/passwd", "/etc/passwd/x"})
    EXPECT_FALSE(run_child({name}, "").started) << name;
}

}  // namespace
}  // namespace tessera::hub
