// metrics.jsonl: one line of JSON for each step.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/telemetry/append_file.h"
#include "tessera/telemetry/gpu/gpu_reading.h"

namespace tessera::telemetry {

inline constexpr std::string_view kMetricsFile = "metrics.jsonl";

// The rank that waited least for communication in a step; the other ranks waited for this rank.
struct SlowestRank {
  int rank = 0;
  double wait_ms = 0;
};

struct StepMetrics {
  std::int64_t step = 0;  // number of the step, from 1
  double loss = 0;        // mean loss of the step's tokens, before the update
  double grad_norm = 0;   // norm of the gradient before clipping
  double lr = 0;
  std::int64_t tokens = 0;  // number of targets in the global batch that the loss counts
  double tokens_per_second = 0;
  double step_ms = 0;  // time since the end of the previous step; after other work (evaluation, checkpoint): time since
                       // the start of this step. Includes suppressed attempts
  double exposed_comm_ms = 0;  // time that compute waited for communication, mean over ranks
  // The part of exposed_comm_ms for activations, as in StepStatistics. Set if the ranks exchange activations.
  std::optional<double> exposed_tp_ms;
  std::int64_t gathered_bytes = 0;  // bytes that gathers of weights received, sum over all ranks
  std::int64_t reduced_bytes = 0;   // bytes that reductions of gradients received, sum over all ranks
  // gathered_bytes by number format. Weights without a number format count as bf16.
  std::array<std::int64_t, quant::kFormats> gathered_by_format{};
  std::array<double, quant::kFormats> flops_by_format{};  // flops of products with weights, sum over all ranks
  // Bytes that the program's collectives over tp received, sum over all ranks. Activations without a number format
  // count as bf16.
  std::array<std::int64_t, quant::kFormats> activations_by_format{};
  std::optional<double> mfu;  // as defined in predict/model_flops.h; nullopt: the peak of the processors is not known
  std::optional<double> valid_loss;  // set if an evaluation followed the step
  // Set for a model with experts. aux_loss and z_loss are the losses of the routers, multiplied by their coefficients.
  // `loss` does not include them. expert_load is the largest load of an expert divided by the mean load, in the layer
  // where this ratio is largest.
  std::optional<double> aux_loss, z_loss, expert_load;
  // Number of choices of tokens that were dropped (--expert-capacity), over all layers. Absent without a capacity.
  std::optional<std::int64_t> expert_dropped;
  // By sparse layer: how often each expert was chosen. Empty in steps without counts (--expert-counts).
  std::vector<std::vector<std::int64_t>> expert_counts;
  std::optional<SlowestRank> slowest;  // set if several ranks have measured waits
  // The state of the GPUs of all ranks. Set in steps that read NVML, if NVML is available on every rank.
  std::optional<GpuReading> gpus;
  bool skipped = false;  // true: the step made no update, because the gradient was not finite
  int suppressed = 0;    // number of attempts of this step that a stop counter suppressed
};

// Returns the name of a number format in the metrics of a run. Format::bf16 represents numbers without a format, so its
// name is that of the run's type, `dtype`.
std::string_view name_in_run(quant::Format format, quant::DType dtype);

// Returns {"bf16": bytes, ...} for the formats with a value other than 0. The keys are results of name_in_run.
nlohmann::ordered_json by_format(const std::array<std::int64_t, quant::kFormats>& bytes, quant::DType dtype);
nlohmann::ordered_json by_format(const std::array<double, quant::kFormats>& flops, quant::DType dtype);

// Returns a text like "12.3 TFLOP (87.5 % fp8, 12.5 % fp32)". The number is the total times `unit`, and `name` is the
// name of the unit. The shares of formats follow; shares of 0 are omitted. `dtype` is the run's type, as in
// name_in_run.
std::string format_shares(const std::array<std::int64_t, quant::kFormats>& bytes, double unit, std::string_view name,
                          quant::DType dtype);
std::string format_shares(const std::array<double, quant::kFormats>& flops, double unit, std::string_view name,
                          quant::DType dtype);

// Returns a number as JSON in the shortest form from which parsers get the same bits. The form always has a point or an
// exponent. NaN and infinities become the quoted texts "NaN", "Infinity" and "-Infinity", because JSON cannot represent
// them as numbers.
std::string json_number(double value);

// Returns one line with its newline. Keys are in the order of StepMetrics. Optional keys, `skipped`, `suppressed` and
// the values by format are present only if they add information to the other keys. `dtype` is the run's type.
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
  void write(const StepMetrics& metrics) { file_.append(metrics_line(metrics, dtype_)); }

 private:
  quant::DType dtype_;  // the run's type
  AppendFile file_;
};

}  // namespace tessera::telemetry
