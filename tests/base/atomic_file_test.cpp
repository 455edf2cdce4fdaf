#include "tessera/base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tests/base/files.h"

namespace tessera::base {
namespace fs = std::filesystem;
namespace {
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(AtomicWrite, ReplacesTheWholeFile) {
  const TempFolder folder;
  write_file_atomically(folder / "f", std::string(100000, 'a'));
  EXPECT_EQ(read_text(folder / "f").size(), 100000u);
  write_json_atomically(folder / "f", {{"b", 1}, {"a", 0.1}});
  EXPECT_EQ(read_text(folder / "f"), "{\n  \"b\": 1,\n  \"a\": 0.1\n}\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(AtomicWrite, FailsWithTheCauseAndLeavesTheOldFile) {
  const TempFolder folder;
  fs::create_directories(folder / "taken/inside");
  try {
    write_file_atomically(folder / "taken", "x");  // a folder is in the way
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("taken"));
  }
  EXPECT_TRUE(fs::exists(folder / "taken/inside"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  EXPECT_THAT([&] { write_file_atomically("/nowhere/f", "x"); },
              ThrowsMessage<Error>(HasSubstr("/nowhere/f: cannot be written: No such file or directory")));
}

TEST(AtomicJson, WritesNumbersThatAreNotFiniteAsMetricsDo) {
  const TempFolder folder;
  const double infinity = std::numeric_limits<double>::infinity();
  nlohmann::ordered_json value = {{"loss", std::nan("")}, {"lr", 0.1}, {"step", 3}};
  value["flops"] = {{"bf16", infinity}, {"fp8", nlohmann::json::array({-infinity, 2.5})}};
  value["data"] = "\xe4";  // a path in Latin-1
  write_json_atomically(folder / "summary.json", value);
  const auto read = nlohmann::json::parse(read_text(folder / "summary.json"));
  EXPECT_EQ(read["loss"], "NaN");
  EXPECT_EQ(read["lr"], 0.1);
  EXPECT_EQ(read["step"], 3);
  EXPECT_EQ(read["flops"]["bf16"], "Infinity");
  EXPECT_EQ(read["flops"]["fp8"], nlohmann::json::array({"-Infinity", 2.5}));
  EXPECT_EQ(read["data"], "\uFFFD");
}

}  // namespace
}  // namespace tessera::base
