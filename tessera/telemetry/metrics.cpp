#include "tessera/telemetry/metrics.h"
#include "tessera/base/atomic_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
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

template <typename T>
T number_as(const json& value) {
  if constexpr (std::is_integral_v<T>)
    return integer_of<T>(value);
  else
    return value.get<T>();
}

struct KeptLines {
  std::string text;
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
    const bool keep =
        !cut_short && parse_metrics_line(line, fmt::format("{}:{}", path.string(), number)).step <= last_step;
    if (keep) lines.text += line + "\n";
    lines.differ |= !keep || !has_newline;
  }
  return lines;
}

std::filesystem::path keep_up_to(const std::filesystem::path& path, std::int64_t last_step) {
  if (const KeptLines lines = lines_up_to(path, last_step); lines.differ) base::write_file_atomically(path, lines.text);
  return path;
}

// The inverse of name_in_run: returns the format of a name. All types of runs have the format bf16.
quant::Format format_in_run(std::string_view name) {
  const bool is_type = name == name_of(quant::DType::fp32) || name == name_of(quant::DType::fp64);
  return is_type ? quant::Format::bf16 : quant::parse_format(name);
}

// Returns the numbers by format that a line has under this key; zeros if the key is absent.
template <typename T>
std::array<T, quant::kFormats> numbers_of_line(const json& line, const char* key) {
  std::array<T, quant::kFormats> numbers{};
  if (!line.contains(key)) return numbers;
  for (const auto& [name, value] : line.at(key).items())
    numbers[static_cast<std::size_t>(format_in_run(name))] = number_as<T>(value);
  return numbers;
}

// Returns the gathered bytes by format of a line of metrics. Without the key, all bytes are bf16.
std::array<std::int64_t, quant::kFormats> gathered_of_line(const json& line) {
  if (line.contains("gathered_by_format")) return numbers_of_line<std::int64_t>(line, "gathered_by_format");
  std::array<std::int64_t, quant::kFormats> bytes{};
  bytes[0] = integer_of<std::int64_t>(line.at("gathered_bytes"));
  return bytes;
}

std::optional<SlowestRank> slowest_of_line(const json& line) {
  if (!line.contains("slowest_rank")) return std::nullopt;
  return SlowestRank{.rank = integer_of<int>(line.at("slowest_rank")),
                     .wait_ms = number_of(line.at("slowest_rank_wait_ms"))};
}

std::vector<std::vector<std::int64_t>> counts_of(const json& layers) {
  std::vector<std::vector<std::int64_t>> counts;
  for (const json& layer : layers) {
    counts.emplace_back();
    for (const json& count : layer) counts.back().push_back(integer_of<std::int64_t>(count));
  }
  return counts;
}

std::optional<GpuReading> gpus_of_line(const json& line) {
  if (!line.contains("gpu_clock_mhz")) return std::nullopt;
  return GpuReading{.clock_mhz = number_of(line.at("gpu_clock_mhz")),
                    .power_w = number_of(line.at("gpu_power_w")),
                    .errors = integer_of<std::int64_t>(line.at("gpu_errors"))};
}

template <typename T>
nlohmann::ordered_json not_zero_by_format(const std::array<T, quant::kFormats>& values, quant::DType dtype) {
  nlohmann::ordered_json result = nlohmann::ordered_json::object();
  for (std::size_t format = 0; format < quant::kFormats; ++format)
    if (values[format] != 0)
      result[std::string(name_in_run(static_cast<quant::Format>(format), dtype))] = values[format];
  return result;
}

template <typename T>
std::string shares_of(const std::array<T, quant::kFormats>& values, double unit, std::string_view name,
                      quant::DType dtype) {
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

std::string_view name_in_run(quant::Format format, quant::DType dtype) {
  return format == quant::Format::bf16 ? name_of(dtype) : name_of(format);
}

nlohmann::ordered_json by_format(const std::array<std::int64_t, quant::kFormats>& bytes, quant::DType dtype) {
  return not_zero_by_format(bytes, dtype);
}
nlohmann::ordered_json by_format(const std::array<double, quant::kFormats>& flops, quant::DType dtype) {
  return not_zero_by_format(flops, dtype);
}

std::string format_shares(const std::array<std::int64_t, quant::kFormats>& bytes, double unit, std::string_view name,
                          quant::DType dtype) {
  return shares_of(bytes, unit, name, dtype);
}
std::string format_shares(const std::array<double, quant::kFormats>& flops, double unit, std::string_view name,
                          quant::DType dtype) {
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

std::string metrics_line(const StepMetrics& m, quant::DType dtype) {
  std::string line = fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "tokens_per_second": {}, "step_ms": {}, )"
      R"("exposed_comm_ms": {}, "gathered_bytes": {}, "reduced_bytes": {}, "mfu": {})",
      m.step, json_number(m.loss), json_number(m.grad_norm), json_number(m.lr), m.tokens,
      json_number(m.tokens_per_second), json_number(m.step_ms), json_number(m.exposed_comm_ms), m.gathered_bytes,
      m.reduced_bytes, m.mfu ? json_number(*m.mfu) : "null");
  if (m.exposed_tp_ms) line += fmt::format(", \"exposed_tp_ms\": {}", json_number(*m.exposed_tp_ms));
  if (m.valid_loss) line += fmt::format(", \"valid_loss\": {}", json_number(*m.valid_loss));
  for (const auto& [key, value] :
       {std::pair{"aux_loss", m.aux_loss}, {"z_loss", m.z_loss}, {"expert_load", m.expert_load}})
    if (value) line += fmt::format(", \"{}\": {}", key, json_number(*value));
  if (m.expert_dropped) line += fmt::format(", \"expert_dropped\": {}", *m.expert_dropped);
  if (!m.expert_counts.empty()) line += ", \"expert_counts\": " + json(m.expert_counts).dump();
  if (m.slowest)
    line += fmt::format(R"(, "slowest_rank": {}, "slowest_rank_wait_ms": {})", m.slowest->rank,
                        json_number(m.slowest->wait_ms));
  if (m.gpus)
    line += fmt::format(R"(, "gpu_clock_mhz": {}, "gpu_power_w": {}, "gpu_errors": {})", json_number(m.gpus->clock_mhz),
                        json_number(m.gpus->power_w), m.gpus->errors);
  if (m.skipped) line += ", \"skipped\": true";
  if (m.suppressed > 0) line += fmt::format(", \"suppressed\": {}", m.suppressed);
  if (m.gathered_by_format[0] != m.gathered_bytes)
    line += ", \"gathered_by_format\": " + by_format(m.gathered_by_format, dtype).dump();
  if (std::any_of(m.flops_by_format.begin() + 1, m.flops_by_format.end(), [](double flops) { return flops != 0; }))
    line += ", \"flops_by_format\": " + by_format(m.flops_by_format, dtype).dump();
  if (const auto activations = by_format(m.activations_by_format, dtype); !activations.empty())
    line += ", \"activations_by_format\": " + activations.dump();
  return line + "}\n";
}

StepMetrics parse_metrics_line(std::string_view line, const std::string& where) {
  try {
    const json all = base::parse_json(line, "the line");
    StepMetrics m{.step = integer_of<std::int64_t>(all.at("step")),
                  .loss = number_of(all.at("loss")),
                  .grad_norm = number_of(all.at("grad_norm")),
                  .lr = number_of(all.at("lr")),
                  .tokens = integer_of<std::int64_t>(all.at("tokens")),
                  .tokens_per_second = number_of(all.at("tokens_per_second")),
                  .step_ms = number_of(all.at("step_ms")),
                  .exposed_comm_ms = number_of(all.at("exposed_comm_ms")),
                  .exposed_tp_ms = std::nullopt,
                  .gathered_bytes = integer_of<std::int64_t>(all.at("gathered_bytes")),
                  .reduced_bytes = integer_of<std::int64_t>(all.at("reduced_bytes")),
                  .gathered_by_format = gathered_of_line(all),
                  .flops_by_format = numbers_of_line<double>(all, "flops_by_format"),
                  .activations_by_format = numbers_of_line<std::int64_t>(all, "activations_by_format"),
                  .mfu = std::nullopt,
                  .valid_loss = std::nullopt,
                  .aux_loss = std::nullopt,
                  .z_loss = std::nullopt,
                  .expert_load = std::nullopt,
                  .expert_dropped = std::nullopt,
                  .expert_counts = {},
                  .slowest = slowest_of_line(all),
                  .gpus = gpus_of_line(all),
                  .skipped = all.value("skipped", false),
                  .suppressed = all.contains("suppressed") ? integer_of<int>(all.at("suppressed")) : 0};
    if (all.contains("mfu") && !all.at("mfu").is_null()) m.mfu = number_of(all.at("mfu"));
    for (const auto& [key, value] : {std::pair{"exposed_tp_ms", &m.exposed_tp_ms},
                                     {"valid_loss", &m.valid_loss},
                                     {"aux_loss", &m.aux_loss},
                                     {"z_loss", &m.z_loss},
                                     {"expert_load", &m.expert_load}})
      if (all.contains(key)) *value = number_of(all.at(key));
    if (all.contains("expert_dropped")) m.expert_dropped = integer_of<std::int64_t>(all.at("expert_dropped"));
    if (all.contains("expert_counts")) m.expert_counts = counts_of(all.at("expert_counts"));
    return m;
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
    : dtype_(dtype), file_(keep_up_to(path, last_step), AppendFile::Open::create_or_append) {}

}  // namespace tessera::telemetry
