#include "tessera/telemetry/metrics.h"
#include "tessera/base/atomic_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"

namespace tessera::telemetry {
namespace {
using nlohmann::json;

double number_of(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  throw Error("{} is not a number", base::shown(value));
}

// Returns an integer from 0 to the largest T. Throws Error for other values, which do not fit the type.
template <typename T>
T integer_of(const json& value) {
  constexpr T kMost = std::numeric_limits<T>::max();
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMost))
    throw Error("{} is not an integer from 0 to {}", base::shown(value), kMost);
  return value.get<T>();
}

struct KeptLines {
  std::string text;
  std::optional<StepMetrics> last;
  bool differ = false;  // whether the kept lines differ from the file
};

KeptLines lines_up_to(const std::filesystem::path& path, std::int64_t last_step) {
  KeptLines lines;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    // After a crash, the last line may be incomplete. After editing, only the last newline may be missing.
    const bool has_newline = !file.eof();
    const bool cut_short = !has_newline && !base::is_json(line);
    std::optional<StepMetrics> metrics;
    if (!cut_short) metrics = parse_metrics_line(line, fmt::format("{}:{}", path.string(), number));
    const bool keep = metrics && metrics->step <= last_step;
    if (keep) lines.text += line + "\n", lines.last = std::move(metrics);
    lines.differ |= !keep || !has_newline;
  }
  return lines;
}

// The inverse of name_in_run: returns the format of a name. All types of runs have the format bf16.
quant::Format format_in_run(std::string_view name) {
  const bool is_type = name == name_of(quant::DType::fp32) || name == name_of(quant::DType::fp64);
  return is_type ? quant::Format::bf16 : quant::parse_format(name);
}

// Returns whether the line has only a step and held-out losses (StepMetrics::trained).
bool is_evaluation(const json& line) {
  return line.size() > 1 && std::ranges::all_of(line.items(), [](const auto& item) {
           return item.key() == "step" || set_of_key(item.key());
         });
}

// Sets `value` to the value that a line has under a key. There is a function for each type of Metric::Member.
void read(const json& from, double& value) {
  value = number_of(from);
}
void read(const json& from, bool& value) {
  value = from.get<bool>();
}
template <std::integral T>
void read(const json& from, T& value) {
  value = integer_of<T>(from);
}
template <typename T>
void read(const json& from, std::optional<T>& value) {
  read(from, value.emplace());
}
template <typename T>
void read(const json& from, ByFormat<T>& values) {
  for (const auto& [name, value] : from.items()) read(value, values[static_cast<std::size_t>(format_in_run(name))]);
}
void read(const json&, LossBySet&) {}  // read_losses reads the keys of all sets
template <typename T>
void read(const json& from, std::vector<T>& values) {
  for (const json& value : from) read(value, values.emplace_back());
}

// Reads the held-out losses of a line.
void read_losses(const json& line, LossBySet& losses) {
  for (const auto& [key, value] : line.items())
    if (const auto name = set_of_key(key)) losses[*name] = number_of(value);
}

bool is_in_line(const Metric& metric, const StepMetrics& step) {
  if (!applies_to(metric, step)) return false;
  if (metric.line != InLine::if_set) return metric.line != InLine::never;
  if (metric.line_if != nullptr) return metric.line_if(step);
  const StepMetrics unset;
  return std::visit([&](auto member) { return step.*member != unset.*member; }, metric.member);
}

template <typename T>
std::string shares_of(const ByFormat<T>& values, double unit, std::string_view name, quant::DType dtype) {
  const auto total = static_cast<double>(std::accumulate(values.begin(), values.end(), T{}));
  std::string text;
  for (std::size_t at = 0; at < quant::kFormats; ++at) {
    if (values[at] == 0) continue;
    text += fmt::format("{}{:.1f} % {}", text.empty() ? "" : ", ", 100 * static_cast<double>(values[at]) / total,
                        name_in_run(static_cast<quant::Format>(at), dtype));
  }
  return fmt::format("{:.4g} {}{}", total * unit, name, text.empty() ? "" : " (" + text + ")");
}
}  // namespace

std::string format_shares(const ByFormat<std::int64_t>& bytes, double unit, std::string_view name, quant::DType dtype) {
  return shares_of(bytes, unit, name, dtype);
}
std::string format_shares(const ByFormat<double>& flops, double unit, std::string_view name, quant::DType dtype) {
  return shares_of(flops, unit, name, dtype);
}

std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  std::array<char, 32> text{};
  const char* end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  std::string out(text.data(), static_cast<std::size_t>(end - text.data()));
  if (out.find_first_of(".e") == std::string::npos)
    out += ".0";  // without a decimal point, -0 would be read as an integer
  return out;
}

std::string metrics_line(const StepMetrics& step, quant::DType dtype) {
  std::string line;
  for (const Metric& metric : metric_rows()) {
    if (!is_in_line(metric, step)) continue;
    each_entry(metric, step, dtype, [&](const std::string& key, const nlohmann::ordered_json& value) {
      line += fmt::format("{}\"{}\": {}", line.empty() ? "{" : ", ", key,
                          value.is_number_float() ? json_number(value.get<double>()) : value.dump());
    });
  }
  return line + "}\n";
}

StepMetrics parse_metrics_line(std::string_view line, const std::string& where) {
  try {
    const json all = base::parse_json(line, "the line");
    StepMetrics step;
    step.trained = !is_evaluation(all);
    for (const Metric& metric : metric_rows()) {
      const auto found = all.find(metric.key);
      const bool is_absent = found == all.end() || (found->is_null() && metric.line == InLine::or_null);
      const bool is_required = metric.line == InLine::always && applies_to(metric, step);
      if (is_absent && !is_required) continue;
      std::visit([&](auto member) { read(all.at(metric.key), step.*member); }, metric.member);
    }
    read_losses(all, step.valid_losses);
    // Without the key, all bytes are bf16.
    if (!all.contains("gathered_by_format")) step.gathered_by_format[0] = step.gathered_bytes;
    return step;
  } catch (const std::exception& error) {
    std::string reason = error.what();
    if (const auto end = reason.find("] "); reason.starts_with("[json.exception") && end != std::string::npos)
      reason.erase(0, end + 2);
    throw InputError("{}: expected a line of metrics (correct or remove it): {}", where, base::excerpt(reason, 200));
  }
}

void check_metrics(const std::filesystem::path& path) {
  lines_up_to(path, 0);
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path, std::int64_t last_step, quant::DType dtype)
    : dtype_(dtype) {
  KeptLines lines = lines_up_to(path, last_step);
  if (lines.differ) base::write_file_atomically(path, lines.text);
  last_ = std::move(lines.last);
  file_.emplace(path, AppendFile::Open::create_or_append);
}

void MetricsWriter::write(const StepMetrics& metrics) {
  if (metrics.trained || !last_ || last_->step != metrics.step) return file_->append(metrics_line(metrics, dtype_));
  last_->valid_losses = metrics.valid_losses;
  const std::filesystem::path path = file_->path();
  std::ifstream file(path, std::ios::binary);
  std::string lines{std::istreambuf_iterator<char>(file), {}};
  lines.erase(lines.rfind('\n', lines.size() - 2) + 1);  // the last line; without an earlier one, rfind + 1 is 0
  base::write_file_atomically(path, lines + metrics_line(*last_, dtype_));
  file_.emplace(path, AppendFile::Open::create_or_append);
}

}  // namespace tessera::telemetry
