// metrics.jsonl: one line of JSON for each step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/telemetry/append_file.h"
#include "tessera/telemetry/metric.h"

namespace tessera::telemetry {

inline constexpr std::string_view kMetricsFile = "metrics.jsonl";

// Returns a text like "12.3 TFLOP (87.5 % fp8, 12.5 % fp32)". The number is the total times `unit`, and `name` is the
// name of the unit. The shares of formats follow; shares of 0 are omitted. `dtype` is the run's type, as in
// name_in_run.
std::string format_shares(const ByFormat<std::int64_t>& bytes, double unit, std::string_view name, quant::DType dtype);
std::string format_shares(const ByFormat<double>& flops, double unit, std::string_view name, quant::DType dtype);

// Returns a number as JSON in the shortest form from which parsers get the same bits. The form always has a point or an
// exponent. NaN and infinities become the quoted texts "NaN", "Infinity" and "-Infinity", because JSON cannot represent
// them as numbers.
std::string json_number(double value);

// Returns one line with its newline. Keys are in the order of metric_rows(). `dtype` is the run's type.
std::string metrics_line(const StepMetrics& metrics, quant::DType dtype = quant::DType::bf16);
// Parses a line. Numbers get the bits with which they were written. Throws InputError, which names `where`, if the text
// is not a line of metrics.
StepMetrics parse_metrics_line(std::string_view line, const std::string& where);

// Checks a file of metrics without writing to it. Throws InputError if a complete line of the file is not a line of
// metrics. The file may be absent.
void check_metrics(const std::filesystem::path& path);

// Appends lines to a file of metrics. write() returns after the operating system has the line. Used by one thread at a
// time.
class MetricsWriter {
 public:
  // Opens the file. The run resumes after step `last_step` (0: a new run). Keeps the lines of steps up to `last_step`
  // and drops later lines. Drops a last line that is incomplete after a crash. Keeps a last line that lacks only its
  // newline. Throws InputError if any other line is not a line of metrics, and Error if the file cannot be written.
  MetricsWriter(const std::filesystem::path& path, std::int64_t last_step, quant::DType dtype = quant::DType::bf16);
  // Appends a line. If the metrics are only an evaluation (StepMetrics::trained), and the last line that the
  // constructor kept is that of the same step, adds the held-out losses to that line instead.
  void write(const StepMetrics& metrics);

 private:
  quant::DType dtype_;               // the run's type
  std::optional<StepMetrics> last_;  // the last line that the constructor kept
  std::optional<AppendFile> file_;   // always set
};

}  // namespace tessera::telemetry
