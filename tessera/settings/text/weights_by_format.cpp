#include "tessera/settings/text/weights_by_format.h"

#include <fmt/ranges.h>

#include "tessera/telemetry/metric.h"

namespace tessera::settings {
namespace {

using quant::Format;
using shard::FormatShares;

bool has_formats(const FormatShares& shares) {
  return shares.elements[static_cast<std::size_t>(Format::bf16)] != shares.total();
}

std::string shares_text(const FormatShares& shares, quant::DType dtype) {
  std::vector<std::string> texts;
  for (std::size_t format = 0; format < quant::kFormats; ++format)
    if (shares.elements[format] > 0)
      texts.push_back(fmt::format(
          "{:.1f} % {}", 100 * static_cast<double>(shares.elements[format]) / static_cast<double>(shares.total()),
          telemetry::name_in_run(static_cast<Format>(format), dtype)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string line_of(std::string_view use, const FormatShares& shares, quant::DType dtype) {
  std::string text = fmt::format("{}: {} of the parameters", use, shares_text(shares, dtype));
  if (!has_formats(shares)) return text;
  std::vector<std::string> reasons;
  for (const shard::WithoutFormat& weights : shares.without)
    reasons.push_back(fmt::format("{} ({})", fmt::join(weights.patterns, ", "), name_of(weights.reason)));
  if (!reasons.empty()) text += fmt::format("; {}: {}", name_of(dtype), fmt::join(reasons, ", "));
  return text;
}

}  // namespace

std::vector<std::string> format_lines(const shard::FormatTable& table, quant::DType dtype) {
  if (!has_formats(table.wire) && !has_formats(table.wire_backward) && !has_formats(table.products))
    return {fmt::format("formats: {} in the wire, the backward wire and products", shares_text(table.wire, dtype))};
  std::vector<std::string> lines;
  if (table.wire == table.wire_backward) {
    lines.push_back(line_of("wire and backward wire", table.wire, dtype));
  } else {
    lines.push_back(line_of("wire", table.wire, dtype));
    lines.push_back(line_of("backward wire", table.wire_backward, dtype));
  }
  lines.push_back(line_of("products", table.products, dtype));
  return lines;
}

nlohmann::ordered_json weights_by_format(const shard::FormatTable& table, quant::DType dtype) {
  return {{"wire", telemetry::by_format(table.wire.elements, dtype)},
          {"wire_backward", telemetry::by_format(table.wire_backward.elements, dtype)},
          {"products", telemetry::by_format(table.products.elements, dtype)}};
}

}  // namespace tessera::settings
