#include "tessera/shard/formats/format_table.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tessera::shard {
namespace {

using quant::Format;

Format format_of(const std::optional<quant::Encoding>& encoding) {
  return encoding ? quant::format_of(*encoding) : Format::bf16;
}

NoFormat reason_of(const ParameterSpec& spec, const FormatRule* rule) {
  if (spec.is_wide) return NoFormat::router;
  if (spec.dims.size() < 2) return NoFormat::vector;
  if (rule != nullptr && !rule->is_default) return NoFormat::rule;
  return spec.reads.per_microbatch > 0 ? NoFormat::table : NoFormat::by_default;
}

std::int64_t elements_of(const ParameterSpec& spec) {
  return std::accumulate(spec.dims.begin(), spec.dims.end(), std::int64_t{1}, std::multiplies());
}

void add(FormatShares& shares, const ParameterSpec& spec, const FormatPolicy& policy, Format format) {
  const std::int64_t elements = elements_of(spec);
  shares.elements[static_cast<std::size_t>(format)] += elements;
  if (format != Format::bf16) return;
  const FormatRule* rule = base::rule_of(policy.rules, spec.name);
  const NoFormat reason = reason_of(spec, rule);
  auto weights = std::ranges::lower_bound(shares.without, reason, {}, &WithoutFormat::reason);
  if (weights == shares.without.end() || weights->reason != reason)
    weights = shares.without.insert(weights, {.reason = reason, .elements = 0, .patterns = {}});
  weights->elements += elements;
  std::string pattern = base::pattern_of(spec.name);
  if (reason == NoFormat::rule) pattern = rule->pattern;
  if (reason == NoFormat::by_default && policy.format == Format::bf16) pattern = "*";
  if (std::ranges::find(weights->patterns, pattern) == weights->patterns.end())
    weights->patterns.push_back(std::move(pattern));
}

}  // namespace

std::string_view name_of(NoFormat reason) {
  constexpr std::array<std::string_view, 5> kNames{"default", "rule", "table read by index", "router", "vector"};
  return kNames.at(static_cast<std::size_t>(reason));
}

std::int64_t FormatShares::total() const {
  return std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
}

void set_formats(ParameterSpec& spec, const FormatPolicies& policies, const ParameterTypes& types) {
  set_encoding(spec, policies.wire, types);
  set_product(spec, policies.products, types);
  set_backward(spec, policies.wire_backward, types);
}

FormatTable format_table(std::span<const ParameterSpec> specs, const FormatPolicies& policies) {
  FormatTable table;
  for (const ParameterSpec& spec : specs) {
    const auto& backward = spec.backward ? spec.backward->encoding : spec.encoding;
    add(table.wire, spec, policies.wire, format_of(spec.encoding));
    add(table.wire_backward, spec, policies.wire_backward, format_of(backward));
    add(table.products, spec, policies.products, spec.product);
    if (is_quantized_at_use(spec)) table.quantized_at_use[static_cast<std::size_t>(spec.product)] += elements_of(spec);
  }
  return table;
}

}  // namespace tessera::shard
