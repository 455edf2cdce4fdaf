#include "tessera/telemetry/metric.h"

#include <algorithm>
#include <type_traits>

#include "tessera/quant/formats/product_kernel.h"
#include "tessera/train/trainer.h"

namespace tessera::telemetry {
namespace {

constexpr std::string_view kValidLoss = "valid_loss";

// Returns the row with a source: a member of StepResult or StepStatistics, or a function of one of them.
template <auto member, auto source>
constexpr Metric from(Metric row) {
  row.member = member;
  row.take = [](const train::StepResult& result, StepMetrics& metrics) {
    if constexpr (std::is_invocable_v<decltype(source), const runtime::StepStatistics&>)
      metrics.*member = std::invoke(source, result.statistics);
    else
      metrics.*member = std::invoke(source, result);
  };
  return row;
}

double step_ms(const train::StepResult& result) {
  return result.seconds * 1e3;
}
double exposed_ms(const runtime::StepStatistics& statistics) {
  return statistics.exposed_seconds * 1e3;
}

bool exchanges_activations(const runtime::StepStatistics& statistics) {
  return std::ranges::any_of(statistics.activations_by_format, [](std::int64_t bytes) { return bytes > 0; });
}
std::optional<double> exposed_tp_ms(const runtime::StepStatistics& statistics) {
  return exchanges_activations(statistics) ? std::optional(statistics.exposed_tp_seconds * 1e3) : std::nullopt;
}
std::optional<double> exposed_weights_ms(const runtime::StepStatistics& statistics) {
  const double seconds = statistics.exposed_seconds - statistics.exposed_tp_seconds;
  return exchanges_activations(statistics) ? std::optional(seconds * 1e3) : std::nullopt;
}

template <auto source>
ByFormat<double> flops(const runtime::StepStatistics& statistics) {
  ByFormat<double> flops{};
  std::ranges::copy(statistics.*source, flops.begin());
  return flops;
}

bool gathers_formats(const StepMetrics& metrics) {
  return metrics.gathered_by_format[0] != metrics.gathered_bytes;
}
bool multiplies_formats(const StepMetrics& metrics) {
  return std::any_of(metrics.flops_by_format.begin() + 1, metrics.flops_by_format.end(),
                     [](double flops) { return flops != 0; });
}

}  // namespace

std::span<const Metric> metric_rows() {
  using M = StepMetrics;
  using Result = train::StepResult;
  using Statistics = runtime::StepStatistics;
  using enum OverRanks;
  using enum InLine;
  using enum InSummary;
  // clang-format off
  static const std::array kRows{
    Metric{.key = "step", .member = &M::step, .line = always},
    from<&M::loss, &Result::loss>(
        {.key = "loss", .line = always, .tensorboard = true, .summary = last, .panel = "loss (nats a token)"}),
    from<&M::grad_norm, &Result::grad_norm>(
        {.key = "grad_norm", .line = always, .tensorboard = true, .panel = "grad_norm"}),
    Metric{.key = "lr", .member = &M::lr, .line = always, .tensorboard = true, .panel = "lr"},
    Metric{.key = "tokens", .member = &M::tokens, .line = always},
    Metric{.key = "tokens_per_second", .member = &M::tokens_per_second, .line = always, .tensorboard = true,
           .summary = median, .panel = "tokens_per_second"},
    from<&M::step_ms, step_ms>({.key = "step_ms", .line = always, .tensorboard = true}),
    from<&M::exposed_comm_ms, exposed_ms>(
        {.key = "exposed_comm_ms", .over_ranks = mean, .line = always, .tensorboard = true, .bench = true}),
    from<&M::gathered_bytes, &Statistics::gathered_bytes>(
        {.key = "gathered_bytes", .over_ranks = sum, .line = always, .tensorboard = true}),
    from<&M::reduced_bytes, &Statistics::reduced_bytes>(
        {.key = "reduced_bytes", .over_ranks = sum, .line = always, .tensorboard = true}),
    Metric{.key = "mfu", .member = &M::mfu, .line = or_null, .tensorboard = true, .summary = median},
    from<&M::exposed_tp_ms, exposed_tp_ms>(
        {.key = "exposed_tp_ms", .over_ranks = mean, .tensorboard = true, .summary = other_median}),
    from<&M::exposed_weights_ms, exposed_weights_ms>(
        {.key = "exposed_weights_ms", .over_ranks = mean, .line = never, .summary = other_median}),
    Metric{.key = "valid_loss", .member = &M::valid_losses, .tensorboard = true, .summary = last},
    Metric{.key = "aux_loss", .member = &M::aux_loss},
    Metric{.key = "z_loss", .member = &M::z_loss},
    Metric{.key = "expert_load", .member = &M::expert_load},
    Metric{.key = "expert_dropped", .member = &M::expert_dropped},
    Metric{.key = "expert_counts", .member = &M::expert_counts},
    Metric{.key = "slowest_rank", .member = &M::slowest_rank},
    Metric{.key = "slowest_rank_wait_ms", .member = &M::slowest_rank_wait_ms},
    Metric{.key = "gpu_clock_mhz", .member = &M::gpu_clock_mhz, .tensorboard = true},
    Metric{.key = "gpu_power_w", .member = &M::gpu_power_w, .tensorboard = true},
    Metric{.key = "gpu_errors", .member = &M::gpu_errors, .tensorboard = true},
    from<&M::skipped, &Result::skipped>({.key = "skipped"}),
    Metric{.key = "suppressed", .member = &M::suppressed},
    from<&M::gathered_by_format, &Statistics::gathered_by_format>(
        {.key = "gathered_by_format", .over_ranks = sum, .line_if = gathers_formats, .summary = other_total}),
    from<&M::flops_by_format, flops<&Statistics::flops_by_format>>(
        {.key = "flops_by_format", .over_ranks = sum, .line_if = multiplies_formats, .summary = other_total}),
    from<&M::decoded_flops, flops<&Statistics::decoded_flops>>(
        {.key = "decoded_flops", .over_ranks = sum, .line = never, .summary = other_total}),
    from<&M::activations_by_format, &Statistics::activations_by_format>(
        {.key = "activations_by_format", .over_ranks = sum, .summary = other_total}),
  };
  // clang-format on
  return kRows;
}

void take(const train::StepResult& result, StepMetrics& metrics) {
  for (const Metric& metric : metric_rows())
    if (metric.take != nullptr) metric.take(result, metrics);
}

nlohmann::ordered_json json_of(const Metric& metric, const StepMetrics& step, quant::DType dtype) {
  return std::visit(
      [&](auto member) -> nlohmann::ordered_json {
        const auto& value = step.*member;
        if constexpr (requires { value.has_value(); })
          return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
        else if constexpr (requires { by_format(value, dtype); })
          return by_format(value, dtype);
        else
          return value;
      },
      metric.member);
}

bool applies_to(const Metric& metric, const StepMetrics& step) {
  return step.trained || metric.member == Metric::Member(&StepMetrics::step) ||
         metric.member == Metric::Member(&StepMetrics::valid_losses);
}

std::string key_of_set(std::string_view name) {
  return std::string(kValidLoss) + (name.empty() ? "" : "/") + std::string(name);
}

std::optional<std::string> set_of_key(std::string_view key) {
  if (!key.starts_with(kValidLoss)) return std::nullopt;
  const std::string_view rest = key.substr(kValidLoss.size());
  if (rest.empty()) return "";
  return rest.size() > 1 && rest.front() == '/' ? std::optional<std::string>(rest.substr(1)) : std::nullopt;
}

void each_entry(const Metric& metric, const StepMetrics& step, quant::DType dtype,
                const std::function<void(const std::string& key, const nlohmann::ordered_json& value)>& take) {
  if (!std::holds_alternative<LossBySet StepMetrics::*>(metric.member))
    return take(std::string(metric.key), json_of(metric, step, dtype));
  for (const auto& [name, loss] : step.*std::get<LossBySet StepMetrics::*>(metric.member)) take(key_of_set(name), loss);
}

std::optional<double> number_of(const Metric& metric, const StepMetrics& step) {
  const nlohmann::ordered_json value = json_of(metric, step, {});
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

void each_number(const Metric& metric, StepMetrics& step, const std::function<void(double&)>& change) {
  const auto changed = [&](auto value) {
    auto number = static_cast<double>(value);
    change(number);
    return static_cast<decltype(value)>(number);
  };
  const auto change_all = [&](auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_arithmetic_v<Value>) {
      value = changed(value);
    } else if constexpr (requires { value.has_value(); }) {
      const auto number = changed(value.value_or(typename Value::value_type{}));
      value = changed(value.has_value()) ? Value(number) : std::nullopt;
    } else if constexpr (!std::is_same_v<Value, CountsByLayer> && !std::is_same_v<Value, LossBySet>) {
      for (auto& number : value) number = changed(number);
    }
  };
  std::visit([&](auto member) { change_all(step.*member); }, metric.member);
}

std::string_view name_in_run(quant::Format format, quant::DType dtype) {
  return format == quant::Format::bf16 ? name_of(dtype) : name_of(format);
}

nlohmann::ordered_json by_reason(const runtime::TpWireFallbacks& gathers) {
  nlohmann::ordered_json result = nlohmann::ordered_json::object();
  for (std::size_t reason = 0; reason < gathers.size(); ++reason)
    if (gathers[reason] != 0) result[std::string(runtime::kTpWireFallbacks[reason])] = gathers[reason];
  return result;
}

nlohmann::ordered_json products_by_kernel(const StepMetrics& totals, quant::DType dtype) {
  nlohmann::ordered_json products = nlohmann::ordered_json::array();
  const auto add = [&](std::size_t format, quant::ProductKernel kernel, double flops) {
    if (flops == 0) return;
    products.push_back({{"format", name_in_run(static_cast<quant::Format>(format), dtype)},
                        {"kernel", name_of(kernel)},
                        {"flops", flops}});
  };
  for (std::size_t format = 0; format < quant::kFormats; ++format) {
    const double decoded = totals.decoded_flops[format];
    add(format, quant::ProductKernel::native, totals.flops_by_format[format] - decoded);
    add(format, quant::ProductKernel::decoded, decoded);
  }
  return products;
}

}  // namespace tessera::telemetry
