#include "tessera/shard/formats/format_policy.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/formats/stack_part.h"

namespace tessera::shard {
namespace {

bool matches(const FormatRule& rule, const std::string& name) {
  return fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0;
}

std::string shown(const FormatPolicy& policy, const FormatRule& rule) {
  return fmt::format("{} {}={}", policy.rule_name, base::excerpt(rule.pattern), name_of(rule.format));
}

// Throws InputError if a rule gives a number format to a parameter that cannot have one.
void refuse_rule(const ParameterSpec& spec, const FormatPolicy& policy) {
  const FormatRule* rule = rule_of(policy, spec.name);
  if (rule != nullptr && rule->format != quant::Format::bf16)
    throw InputError("{}: '{}' has no number format in this version, expected a rule that does not match it",
                     shown(policy, *rule), spec.name);
}

// Returns the number format in which a parameter is stored and sent.
quant::Format wire_format_of(const ParameterSpec& spec, const FormatPolicy& policy) {
  if (!spec.takes_formats) {
    refuse_rule(spec, policy);
    return quant::Format::bf16;
  }
  if (spec.dims.size() < 2 || !spec.sharded) return quant::Format::bf16;
  const FormatRule* rule = rule_of(policy, spec.name);
  const quant::Format format = rule != nullptr ? rule->format : policy.format;
  if (format == quant::Format::bf16 || spec.reads.per_microbatch == 0) return format;
  if (rule == nullptr) return quant::Format::bf16;
  throw InputError("{}: the rows of '{}' are read by index and travel in bf16", shown(policy, *rule), spec.name);
}

std::int64_t rows_of_tiles(const std::optional<quant::Encoding>& encoding) {
  std::int64_t rows = 1;
  if (!encoding) return rows;
  for (const PlaneSpec& plane : encoded_planes(*encoding)) rows = std::lcm(rows, plane.tile.rows);
  return rows;
}

// Returns the names as a list of patterns: "layers.*.mlp.down.weight, output.weight".
std::string patterns_of(std::span<const std::string> names) {
  std::vector<std::string> patterns;
  for (const std::string& name : names)
    if (std::string pattern = pattern_of(name); std::ranges::find(patterns, pattern) == patterns.end())
      patterns.push_back(std::move(pattern));
  return fmt::format("{}", fmt::join(patterns, ", "));
}

}  // namespace

bool FormatPolicy::is_bf16() const {
  return format == quant::Format::bf16 &&
         std::ranges::all_of(rules, [](const FormatRule& rule) { return rule.format == quant::Format::bf16; });
}

const FormatRule* rule_of(const FormatPolicy& policy, const std::string& name) {
  const FormatRule* last = nullptr;
  for (const FormatRule& rule : policy.rules)
    if (matches(rule, name)) last = &rule;
  return last;
}

std::string pattern_of(std::string_view name) {
  std::string pattern;
  for (std::size_t at = 0; at <= name.size();) {
    const std::string_view part = name.substr(at, std::min(name.find('.', at), name.size()) - at);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    pattern += (at == 0 ? "" : ".") + (is_number ? "*" : std::string(part));
    at += part.size() + 1;
  }
  return pattern;
}

std::vector<FormatRule> parse_format_rules(std::string_view text, std::string_view where) {
  std::vector<FormatRule> rules;
  while (!text.empty()) {
    const std::string_view rule = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), rule.size() + 1));
    const std::size_t equals = rule.find('=');
    if (equals == std::string_view::npos || equals == 0)
      throw InputError("{}: got '{}', expected PATTERN=FORMAT,PATTERN=FORMAT,...", where, base::excerpt(rule));
    try {
      rules.push_back({std::string(rule.substr(0, equals)), quant::parse_format(rule.substr(equals + 1))});
    } catch (const InputError& error) {
      throw InputError("{}: in '{}': {}", where, base::excerpt(rule), base::excerpt(error.what(), 300));
    }
  }
  return rules;
}

void set_product(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types) {
  if (!spec.takes_formats) return refuse_rule(spec, policy);
  if (spec.dims.size() < 2) return;
  const FormatRule* rule = rule_of(policy, spec.name);
  const quant::Format format = rule != nullptr ? rule->format : policy.format;
  if (format == quant::Format::bf16) return;
  if (spec.reads.per_microbatch > 0) {
    if (rule == nullptr) return;
    throw InputError("{}: the rows of '{}' are read by index, so it has no products", shown(policy, *rule), spec.name);
  }
  if (types.model != quant::DType::bf16)
    throw InputError("parameter '{}': products in {} need the type bf16, got {}", spec.name, name_of(format),
                     name_of(types.model));
  check_tiles(spec, quant::weight_encoding(format));
  spec.product = format;
  if (spec.dims.size() != 3) return;
  const quant::Extent matrix = matrix_of_stack(spec);
  spec.kernels = quant::stack_kernels(format, policy.stacks, matrix.rows, matrix.cols);
}

void set_encoding(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types) {
  const quant::Format format = wire_format_of(spec, policy);
  if (format == quant::Format::bf16) return;
  spec.encoding = quant::weight_encoding(format);
  check_encoding(spec, types);
}

void set_backward(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types) {
  const quant::Format format = wire_format_of(spec, policy);
  std::optional<quant::Encoding> encoding;
  if (format != quant::Format::bf16)
    encoding =
        format == spec.product && !spec.looked_up ? quant::columnwise_encoding(format) : quant::weight_encoding(format);
  if (encoding == spec.encoding) return;
  spec.backward = {encoding};
  // A rank's part of the master must consist of whole tiles of both formats.
  spec.rows_together = std::lcm(rows_of_tiles(spec.encoding), rows_of_tiles(encoding));
  check_encoding(backward_weight(spec), types);
}

void check_rules(std::span<const FormatRule> rules, std::span<const std::string> names, std::string_view where) {
  for (auto rule = rules.begin(); rule != rules.end(); ++rule) {
    const auto is_matched = [&](const std::string& name) { return matches(*rule, name); };
    const auto is_decided = [&](const std::string& name) {
      return is_matched(name) &&
             std::none_of(rule + 1, rules.end(), [&](const auto& later) { return matches(later, name); });
    };
    if (std::ranges::none_of(names, is_matched))
      throw InputError("{}: got {}={}, expected the name of a matrix with a number format: {}", where,
                       base::excerpt(rule->pattern), name_of(rule->format), patterns_of(names));
    if (std::ranges::none_of(names, is_decided))
      throw InputError(
          "{}: got {}={}, which has no effect: later rules match the same weights. Remove it, or move it to the end",
          where, base::excerpt(rule->pattern), name_of(rule->format));
  }
}

}  // namespace tessera::shard
