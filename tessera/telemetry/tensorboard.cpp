#include "tessera/telemetry/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::telemetry {
namespace {
static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t castagnoli = 0x82F63B78;  // the polynomial of CRC-32C, with reversed bits
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ castagnoli : crc >> 1;
    table[byte] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xA282EAD8;
}

// Protobuf's wire format: key = field << 3 | kind, kinds 0 varint, 1 eight bytes, 2 counted bytes, 5 four bytes.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string varint_field(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string double_field(int field, double value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 1) + raw(value);
}
std::string float_field(int field, float value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 5) + raw(value);
}
std::string bytes_field(int field, std::string_view value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) + std::string(value);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns a file name that is new in the folder. TensorBoard finds event files by "tfevents" and reads them in the
// order of their names.
std::filesystem::path new_file(const std::filesystem::path& folder) {
  const auto seconds = static_cast<std::int64_t>(seconds_now());
  for (int n = 0;; ++n) {
    auto path = folder / fmt::format("events.out.tfevents.{:010}.tessera.{}.{}", seconds, ::getpid(), n);
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : data) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::string tensorboard_record(std::string_view event) {
  const std::string length = raw(static_cast<std::uint64_t>(event.size()));
  return length + raw(masked(crc32c(length))) + std::string(event) + raw(masked(crc32c(event)));
}

std::string version_event(double wall_time) {
  return double_field(1, wall_time) + bytes_field(3, "brain.Event:2");
}

std::string scalars_event(double wall_time, std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
  return double_field(1, wall_time) + varint_field(2, static_cast<std::uint64_t>(step)) + bytes_field(5, summary);
}

std::string session_start_event(double wall_time, std::int64_t step) {
  constexpr std::uint64_t start = 1;
  return double_field(1, wall_time) + varint_field(2, static_cast<std::uint64_t>(step)) +
         bytes_field(7, varint_field(1, start));
}

Scalars scalars_of(const StepMetrics& step) {
  Scalars scalars;
  for (const Metric& metric : metric_rows()) {
    if (!metric.tensorboard || !applies_to(metric, step)) continue;
    each_entry(metric, step, {}, [&](const std::string& key, const nlohmann::ordered_json& value) {
      if (value.is_number()) scalars.emplace_back(key, value.get<double>());
    });
  }
  return scalars;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::optional<std::int64_t> first_step)
    : file_(new_file(folder), AppendFile::Open::create_new) {
  file_.append(tensorboard_record(version_event(seconds_now())));
  if (first_step) file_.append(tensorboard_record(session_start_event(seconds_now(), *first_step)));
}

void TensorBoardWriter::write(std::int64_t step, const Scalars& scalars) {
  file_.append(tensorboard_record(scalars_event(seconds_now(), step, scalars)));
}

}  // namespace tessera::telemetry
