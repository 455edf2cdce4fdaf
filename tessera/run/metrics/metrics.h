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
#include "tessera/run/metrics/append_file.h"
#include "tessera/run/metrics/gpu_reading.h"

namespace tessera::run {

// The rank that waited least for communication in a step; the other ranks waited for this rank.
struct SlowestRank {
  int rank = 0;
  double wait_ms = 0;
};

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean over the step's tokens, before the update
  double grad_norm = 0;   // before clipping
  double lr = 0;
  std::int64_t tokens = 0;  // targets that the loss counts, of the whole global batch
  double tokens_per_second = 0;
  double step_ms = 0;  // time since the end of the previous step, or since the step's start after other work; includes
                       // suppressed attempts
  double exposed_comm_ms = 0;       // time that ranks waited for communication, mean over ranks
  std::int64_t gathered_bytes = 0;  // received by gathers of weights, all ranks
  std::int64_t reduced_bytes = 0;   // received by reductions of gradients, all ranks
  // gathered_bytes by format; weights without a number format count as bf16.
  std::array<std::int64_t, quant::kFormats> gathered_by_format{};
  std::array<double, quant::kFormats> flops_by_format{};  // operations of products with weights, over all ranks
  // Bytes received by collectives of the program over tp, all ranks. Activations without a number format count as bf16.
  std::array<std::int64_t, quant::kFormats> activations_by_format{};
  std::optional<double> mfu;         // run/model_flops.h; nullopt: the peak of the processors is not known
  std::optional<double> valid_loss;  // if an evaluation followed the step
  // Set for a model with experts. The losses of the routers include their coefficients; `loss` does not contain them.
  // The load is the largest load of an expert divided by the mean load, in the layer where this ratio is largest.
  std::optional<double> aux_loss, z_loss, expert_load;
  // Choices of tokens that were dropped (--expert-capacity), over all layers. Absent without a capacity.
  std::optional<std::int64_t> expert_dropped;
  // By sparse layer: how often each expert was chosen (--expert-counts). Empty: not in this line.
  std::vector<std::vector<std::int64_t>> expert_counts;
  std::optional<SlowestRank> slowest;  // set if several ranks have measured waits
  // The reading over all ranks; set in the steps that read it, if every rank finds NVML.
  std::optional<GpuReading> gpus;
  bool skipped = false;  // true: the step made no update, because the gradient was not finite
  int suppressed = 0;    // attempts of this step that a stop counter suppressed before the attempt that counts
};

// Returns the name of a number format in a run of this type. bf16 represents numbers without a format, so its name is
// that of the type.
std::string_view name_in_run(quant::Format format, quant::DType dtype);

// Returns {"bf16": bytes, ...} for the formats with a value other than 0. Keys are those of name_in_run.
nlohmann::ordered_json by_format(const std::array<std::int64_t, quant::kFormats>& bytes, quant::DType dtype);
nlohmann::ordered_json by_format(const std::array<double, quant::kFormats>& flops, quant::DType dtype);

// Returns "12.3 TFLOP (87.5 % fp8, 12.5 % fp32)": the total times `unit`, then `name`, then the shares that are not 0.
// `dtype`: the run's type, whose name represents numbers without a number format.
std::string format_shares(const std::array<std::int64_t, quant::kFormats>& bytes, double unit, std::string_view name,
                          quant::DType dtype);
std::string format_shares(const std::array<double, quant::kFormats>& flops, double unit, std::string_view name,
                          quant::DType dtype);

// Returns a number as JSON that reads back to the same bits: the shortest form, always with a point or an exponent. NaN
// and infinities become the texts "NaN", "Infinity", "-Infinity" (quoted), because JSON cannot represent them.
std::string json_number(double value);

// Returns one line with its newline. Keys are in the order of StepMetrics. valid_loss, skipped, suppressed,
// gathered_by_format, flops_by_format and activations_by_format are present only if they add information to the other
// keys. `dtype`: the run's type.
std::string metrics_line(const StepMetrics& metrics, quant::DType dtype = quant::DType::bf16);
// Parses a line; numbers have the same bits as when written. Throws InputError, which names `where`, if it is not a
// line of metrics.
StepMetrics parse_metrics_line(std::string_view line, const std::string& where);

// Checks without writing. Throws InputError if a whole line of the file is not a line of metrics. The file may be
// absent.
void check_metrics(const std::filesystem::path& path);

// Appends lines to the file. write() returns after the operating system has the line. Used by one thread at a time.
class MetricsWriter {
 public:
  // Keeps the lines of steps up to `last_step`, from which the run resumes (0: a new run). Drops later lines, and a
  // last line that a crash cut short. Keeps a complete last line that lacks only its newline. Throws InputError if
  // another line is not a line of metrics, and Error if the file cannot be written.
  MetricsWriter(const std::filesystem::path& path, std::int64_t last_step, quant::DType dtype = quant::DType::bf16);
  void write(const StepMetrics& metrics) { file_.append(metrics_line(metrics, dtype_)); }

 private:
  quant::DType dtype_;  // of the run
  AppendFile file_;
};

}  // namespace tessera::run
