#include "tessera/telemetry/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "tests/settings/config_test_support.h"

namespace tessera::telemetry {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

TEST(Crc32c, MatchesThePublishedValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);  // also from RFC 3720, B.4
}

// wall_time 1.0 = 3ff0000000000000 little-endian after key 09; "brain.Event:2" after key 1a and length 0d.
TEST(TensorBoard, EventsAreGolden) {
  EXPECT_EQ(hex(version_event(1.0)), "09000000000000f03f1a0d627261696e2e4576656e743a32");
  // step 300 = varint ac02 after key 10; summary (2a) of one value (0a): tag (0a) "loss", simple_value (15) 2.5f.
  EXPECT_EQ(hex(scalars_event(1.0, 300, {{"loss", 2.5}})), "09000000000000f03f10ac022a0d0a0b0a046c6f73731500002040");
  EXPECT_EQ(hex(session_start_event(1.0, 5)), "09000000000000f03f10053a020801");
}

// Splits a file into records by the definition, checks both checksums, and returns the events.
std::vector<std::string> parse_records(std::string_view file) {
  const auto masked = [](std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; };
  std::vector<std::string> events;
  while (!file.empty()) {
    std::uint64_t length = 0;
    std::uint32_t length_sum = 0, data_sum = 0;
    EXPECT_GE(file.size(), 16u);
    if (file.size() < 16) break;
    std::memcpy(&length, file.data(), 8);
    std::memcpy(&length_sum, file.data() + 8, 4);
    EXPECT_EQ(length_sum, masked(crc32c(file.substr(0, 8))));
    EXPECT_GE(file.size(), 16 + length);
    if (file.size() < 16 + length) break;
    events.emplace_back(file.substr(12, length));
    std::memcpy(&data_sum, file.data() + 12 + length, 4);
    EXPECT_EQ(data_sum, masked(crc32c(events.back())));
    file.remove_prefix(16 + length);
  }
  return events;
}

TEST(TensorBoard, WritesFilesOfWholeRecords) {
  const base::TempFolder folder;
  TensorBoardWriter writer(folder.path());
  writer.write(1, {{"loss", 2.5}, {"lr", 0.1}});
  writer.write(2, {});
  EXPECT_NE(writer.path().filename().string().find("tfevents"), std::string::npos);
  const auto events = parse_records(base::read_text(writer.path()));
  ASSERT_EQ(events.size(), 3u);
  constexpr std::size_t time_at = 9;  // key and fp64 of the wall time
  EXPECT_EQ(events[0].substr(time_at), version_event(0).substr(time_at));
  EXPECT_EQ(events[1].substr(time_at), scalars_event(0, 1, {{"loss", 2.5}, {"lr", 0.1}}).substr(time_at));
  EXPECT_EQ(events[2].substr(time_at), scalars_event(0, 2, {}).substr(time_at));
}

TEST(TensorBoard, AResumedRunWritesANewFileThatPurgesLaterSteps) {
  const base::TempFolder folder;
  const TensorBoardWriter first(folder.path());
  const TensorBoardWriter second(folder.path(), 21);
  EXPECT_NE(first.path(), second.path());
  const auto events = parse_records(base::read_text(second.path()));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].substr(9), session_start_event(0, 21).substr(9));
}

TEST(TensorBoard, StepsHaveTheMetricsUnderTheirNames) {
  const StepMetrics metrics{
      .step = 4, .loss = 2, .grad_norm = 3, .lr = 4, .gathered_bytes = 9, .valid_losses = {{"", 7}}};
  const Scalars scalars = scalars_of(metrics);
  EXPECT_EQ(scalars.front(), (std::pair<std::string, double>{"loss", 2.0}));
  EXPECT_EQ(scalars.back(), (std::pair<std::string, double>{"valid_loss", 7.0}));
  EXPECT_THAT(scalars, ::testing::Contains(std::pair<std::string, double>{"gathered_bytes", 9.0}));
}

}  // namespace
}  // namespace tessera::telemetry
