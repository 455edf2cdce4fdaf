// Writes TensorBoard event files with scalars by step.
//
// A file is a list of records: u64 length, u32 masked CRC-32C of those 8 bytes, the data, u32 masked CRC-32C of the
// data, all little-endian; masked(crc) = rotate_right(crc, 15) + 0xA282EAD8. The data is an Event in protobuf's wire
// format: wall_time (1, double), step (2, varint), and one of file_version (3, text), summary (5), session_log (7). A
// summary has values (1); each value has a tag (1, text) and a simple_value (2, float).
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/telemetry/append_file.h"
#include "tessera/telemetry/metric.h"

namespace tessera::telemetry {

std::uint32_t crc32c(std::string_view data);
std::string tensorboard_record(std::string_view event);

using Scalars = std::vector<std::pair<std::string, double>>;  // pairs of tag and value; values are stored as fp32
std::string version_event(double wall_time);
std::string scalars_event(double wall_time, std::int64_t step, const Scalars& scalars);
// Tells TensorBoard to drop earlier events of `step` and of later steps.
std::string session_start_event(double wall_time, std::int64_t step);

// Returns the scalars of a step's metrics, with the names of metrics.jsonl.
Scalars scalars_of(const StepMetrics& step);

// Writes one new file in `folder`, which exists. On resume, `first_step` is the step with which the run continues, and
// TensorBoard drops this step and later ones from earlier files. Throws the errors of AppendFile. Used by one thread at
// a time.
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& folder,
                             std::optional<std::int64_t> first_step = std::nullopt);
  void write(std::int64_t step, const Scalars& scalars);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace tessera::telemetry
