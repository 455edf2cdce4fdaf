#include "tessera/run/version_text.h"

#include <gtest/gtest.h>

#include <regex>

#include "tessera/comm/nccl/world.h"

namespace tessera::run {
namespace {

TEST(VersionText, NamesTheVersionAndWhatTheBuildHas) {
  const std::string text = version_text();
  const std::regex form("tessera \\d+\\.\\d+\\.\\d+\nlibtorch 2\\.\\d+\\.\\d+.*\nCUDA (yes|no)\nMPI (yes|no)\n");
  EXPECT_TRUE(std::regex_match(text, form)) << text;
  EXPECT_EQ(text.find("CUDA yes") != std::string::npos, comm::nccl_available());
}

}  // namespace
}  // namespace tessera::run
