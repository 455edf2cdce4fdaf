// metrics.jsonl: what each step did, one line of JSON a step.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/run/metrics/append_file.h"

namespace tessera::run {

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean over the step's tokens, before the update
  double grad_norm = 0;   // before clipping
  double lr = 0;
  std::int64_t tokens = 0;  // that the loss counts, of the whole global batch
  double tokens_per_second = 0;
  double step_ms = 0;               // since the end of the step before; behind other work, since its beginning; with
                                    // its attempts that were suppressed
  double exposed_comm_ms = 0;       // time that ranks waited for communication, mean over ranks
  std::int64_t gathered_bytes = 0;  // received by gathers of weights, all ranks
  std::int64_t reduced_bytes = 0;   // received by reductions of gradients, all ranks
  std::array<std::int64_t, quant::kFormats> gathered_by_format{};  // of them; weights without a number format as bf16
  std::array<double, quant::kFormats> flops_by_format{};           // of products with weights, all ranks
  // Bytes received by collectives of the program over tp, all ranks; those without a number format as bf16.
  std::array<std::int64_t, quant::kFormats> activations_by_format{};
  std::optional<double> valid_loss;  // when the step ended with an evaluation
  bool skipped = false;              // the gradient was not finite: no update
  int suppressed = 0;                // attempts whose update a stop counter suppressed, before the one that counts
};

// The name of a number format in a run of this type: bf16, which stands for numbers without a format, is the type.
std::string_view name_in_run(quant::Format format, quant::DType dtype);

// Returns {"bf16": bytes, ...} with the formats that moved something, by name_in_run.
nlohmann::ordered_json by_format(const std::array<std::int64_t, quant::kFormats>& bytes, quant::DType dtype);
nlohmann::ordered_json by_format(const std::array<double, quant::kFormats>& flops, quant::DType dtype);

// "12.3 TFLOP (87.5 % fp8, 12.5 % fp32)": the total in a unit, and the shares of what is not 0. dtype: of the run,
// whose name stands for numbers without a number format.
std::string format_shares(const std::array<std::int64_t, quant::kFormats>& bytes, double unit, std::string_view name,
                          quant::DType dtype);
std::string format_shares(const std::array<double, quant::kFormats>& flops, double unit, std::string_view name,
                          quant::DType dtype);

// A number as JSON that reads back to the same bits: shortest form, always with a point or an exponent. JSON has no
// infinities: they become the texts "NaN", "Infinity", "-Infinity" (quoted).
std::string json_number(double value);

// One line, with its newline. Keys in the order of StepMetrics; valid_loss, skipped, suppressed, gathered_by_format,
// flops_by_format and activations_by_format (of formats that moved or multiplied something) only where they say
// something more than the rest. dtype: of the run.
std::string metrics_line(const StepMetrics& metrics, quant::DType dtype = quant::DType::bf16);
// The line read back, the same bits. InputError, naming `where`, when it is none.
StepMetrics parse_metrics_line(std::string_view line, const std::string& where);

// Looks only. InputError when a whole line of the file is no metrics line. A file that is not there has none.
void check_metrics(const std::filesystem::path& path);

// Appends lines to the file; each is with the system before the call returns. One thread at a time.
class MetricsWriter {
 public:
  // Keeps the lines of the steps up to `last_step`, which the run goes on from (0: a new run), and drops later ones and
  // a last line that a crash cut short (one that lacks its newline alone is kept). InputError when another line is no
  // metrics line; Error when it cannot be written.
  MetricsWriter(const std::filesystem::path& path, std::int64_t last_step, quant::DType dtype = quant::DType::bf16);
  void write(const StepMetrics& metrics) { file_.append(metrics_line(metrics, dtype_)); }

 private:
  quant::DType dtype_;  // of the run
  AppendFile file_;
};

}  // namespace tessera::run
