// The metrics of a training step. Files, sums over ranks, summaries, plots and benchmarks walk the rows of one table,
// so a new metric needs a member, a row (metric.cpp) and a source (CONTRIBUTING.md, "Add a metric").
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/runtime/collective.h"

namespace tessera::train {
struct StepResult;
}

namespace tessera::telemetry {

template <typename T>
using ByFormat = std::array<T, quant::kFormats>;  // index: number format
using CountsByLayer = std::vector<std::vector<std::int64_t>>;
using LossBySet = std::map<std::string, double>;  // by name of a held-out set; the set without a name has the name ""

struct StepMetrics {
  std::int64_t step = 0;  // number of the step, from 1; 0 for the evaluation before the first step
  // False: this process evaluated the weights after this step and did not train it. Only `step` and `valid_losses` are
  // set.
  bool trained = true;
  double loss = 0;       // mean loss of the step's tokens, before the update
  double grad_norm = 0;  // norm of the gradient before clipping
  double lr = 0;
  std::int64_t tokens = 0;  // number of targets in the global batch that the loss counts
  double tokens_per_second = 0;
  double step_ms = 0;  // time since the end of the previous step; after other work (evaluation, checkpoint): time since
                       // the start of this step. Includes suppressed attempts
  double exposed_comm_ms = 0;  // time that compute waited for communication, mean over ranks
  // The two parts of exposed_comm_ms: waits for activations, and other waits (StepStatistics). Set if the ranks
  // exchange activations.
  std::optional<double> exposed_tp_ms{}, exposed_weights_ms{};
  std::int64_t gathered_bytes = 0;  // bytes that gathers of weights received, sum over all ranks
  std::int64_t reduced_bytes = 0;   // bytes that reductions of gradients received, sum over all ranks
  // gathered_bytes by number format. Weights without a number format count as bf16.
  ByFormat<std::int64_t> gathered_by_format{};
  ByFormat<double> flops_by_format{};  // flops of products with weights, sum over all ranks
  ByFormat<double> decoded_flops{};    // the part of flops_by_format of decoded products
  // Bytes that the program's collectives over tp received, sum over all ranks. Activations without a number format
  // count as bf16.
  ByFormat<std::int64_t> activations_by_format{};
  std::optional<double> mfu{};  // as defined in predict/model_flops.h; nullopt: the peak of the processors is not known
  LossBySet valid_losses{};     // set if an evaluation followed the step
  // Set for a model with experts. aux_loss and z_loss are the losses of the routers, multiplied by their coefficients.
  // `loss` does not include them. expert_load is the largest load of an expert divided by the mean load, in the layer
  // where this ratio is largest.
  std::optional<double> aux_loss{}, z_loss{}, expert_load{};
  // Number of choices of tokens that were dropped (--expert-capacity), over all layers. Absent without a capacity.
  std::optional<std::int64_t> expert_dropped{};
  // By sparse layer: how often each expert was chosen. Empty in steps without counts (--expert-counts).
  CountsByLayer expert_counts{};
  // The rank that waited least for communication, for which the other ranks waited, and its wait. Set if several ranks
  // have measured waits.
  std::optional<int> slowest_rank{};
  std::optional<double> slowest_rank_wait_ms{};
  // The state of the GPUs of all ranks (gpu/gpu_reading.h). Set in steps that read NVML, if NVML is available on every
  // rank.
  std::optional<double> gpu_clock_mhz{}, gpu_power_w{};
  std::optional<std::int64_t> gpu_errors{};
  bool skipped = false;  // true: the step made no update, because the gradient was not finite
  int suppressed = 0;    // number of attempts of this step that a stop counter suppressed
};

// How the values of the ranks become the value of the step. A rank without a value counts as 0, and the step has a
// value if a rank has one. same: the values are not combined, and the files contain the value of rank 0.
enum class OverRanks : std::uint8_t { same, mean, sum };

// When a line of metrics.jsonl contains the key. or_null: always, with null if the metric is not set. if_set: if an
// optional member has a value, or if another member is not zero, false or empty.
enum class InLine : std::uint8_t { always, or_null, if_set, never };

// The value of a run in summary.json. `last` and `median` are stored under the key of the metric. run/run_files.cpp
// stores the others under keys of their own, beside the settings to which they belong.
enum class InSummary : std::uint8_t { no, last, median, other_median, other_total };

struct Metric {
  using Member =
      std::variant<bool StepMetrics::*, int StepMetrics::*, std::int64_t StepMetrics::*, double StepMetrics::*,
                   std::optional<int> StepMetrics::*, std::optional<std::int64_t> StepMetrics::*,
                   std::optional<double> StepMetrics::*, ByFormat<std::int64_t> StepMetrics::*,
                   ByFormat<double> StepMetrics::*, CountsByLayer StepMetrics::*, LossBySet StepMetrics::*>;

  std::string_view key;
  Member member{};
  void (*take)(const train::StepResult&, StepMetrics&) = nullptr;  // sets the member to this rank's value of a step
  OverRanks over_ranks = OverRanks::same;
  InLine line = InLine::if_set;
  bool (*line_if)(const StepMetrics&) = nullptr;  // replaces the condition of if_set
  bool tensorboard = false;
  InSummary summary = InSummary::no;
  bool bench = false;        // whether the JSON of `bench step` has the median of the steps
  std::string_view panel{};  // title of the panel in `tessera plot`; empty: no panel
};

// Returns the rows in the order of the keys in a line.
std::span<const Metric> metric_rows();

// Sets the metrics that are read from the result of a step to the values of this rank.
void take(const train::StepResult& result, StepMetrics& metrics);

// Returns the value as JSON; null if the step lacks it. The keys of values by format are results of name_in_run.
nlohmann::ordered_json json_of(const Metric& metric, const StepMetrics& step, quant::DType dtype);
// Calls `take` with the key and the value of each entry of the metric: one for each held-out set, with its key_of_set,
// and otherwise one with the metric's key, which may be null. The keys of values by format are results of name_in_run.
void each_entry(const Metric& metric, const StepMetrics& step, quant::DType dtype,
                const std::function<void(const std::string& key, const nlohmann::ordered_json& value)>& take);
// Returns whether the step can have the metric: any metric if the step was trained, otherwise its number and its
// held-out losses.
bool applies_to(const Metric& metric, const StepMetrics& step);
// Returns "valid_loss/NAME"; without a name "valid_loss".
std::string key_of_set(std::string_view name);
// Returns the name of the held-out set if the key is a result of key_of_set.
std::optional<std::string> set_of_key(std::string_view key);
// Returns the value; nullopt if the step lacks it or if it is not a single number.
std::optional<double> number_of(const Metric& metric, const StepMetrics& step);
// Calls `change` with each number of the metric, which it may change: with the values by format, or with the value. An
// optional value, which is 0 if it is not set, precedes 1 if it is set and 0 if it is not. Lists of counts have none.
void each_number(const Metric& metric, StepMetrics& step, const std::function<void(double&)>& change);

// Returns the name of a number format in the metrics of a run. Format::bf16 represents numbers without a format, so its
// name is that of the run's type, `dtype`.
std::string_view name_in_run(quant::Format format, quant::DType dtype);

// Returns {"bf16": bytes, ...} for the formats with a value other than 0. The keys are results of name_in_run.
template <typename T>
nlohmann::ordered_json by_format(const ByFormat<T>& values, quant::DType dtype) {
  nlohmann::ordered_json result = nlohmann::ordered_json::object();
  for (std::size_t format = 0; format < quant::kFormats; ++format)
    if (values[format] != 0)
      result[std::string(name_in_run(static_cast<quant::Format>(format), dtype))] = values[format];
  return result;
}
// Returns {"tiles": gathers, ...} for the reasons with a value other than 0.
nlohmann::ordered_json by_reason(const runtime::TpWireFallbacks& gathers);
// Returns [{"format": "nvfp4", "kernel": "decoded", "flops": flops}, ...] for the formats of products with weights
// (quant/formats/product_kernel.h). A format has an entry for each kernel. The names of formats are results of
// name_in_run.
nlohmann::ordered_json products_by_kernel(const StepMetrics& totals, quant::DType dtype);

}  // namespace tessera::telemetry
