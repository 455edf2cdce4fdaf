#include "tessera/shard/formats/format_policy.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/formats/stack_part.h"

namespace tessera::shard {
namespace {

std::string shown(const FormatPolicy& policy, const FormatRule& rule) {
  return fmt::format("{} {}={}", policy.rule_name, base::excerpt(rule.pattern), name_of(rule.value));
}

// Throws InputError if a rule gives a number format to a parameter that cannot have one.
void refuse_rule(const ParameterSpec& spec, const FormatPolicy& policy) {
  const FormatRule* rule = base::rule_of(policy.rules, spec.name);
  if (rule != nullptr && rule->value != quant::Format::bf16)
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
  const FormatRule* rule = base::rule_of(policy.rules, spec.name);
  const quant::Format format = rule != nullptr ? rule->value : policy.format;
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

}  // namespace

bool FormatPolicy::is_bf16() const {
  return format == quant::Format::bf16 &&
         std::ranges::all_of(rules, [](const FormatRule& rule) { return rule.value == quant::Format::bf16; });
}

std::vector<FormatRule> parse_format_rules(std::string_view text, std::string_view where) {
  return base::parse_name_rules(text, where, "FORMAT", quant::parse_format);
}

void set_product(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types) {
  if (!spec.takes_formats) return refuse_rule(spec, policy);
  if (spec.dims.size() < 2) return;
  const FormatRule* rule = base::rule_of(policy.rules, spec.name);
  const quant::Format format = rule != nullptr ? rule->value : policy.format;
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
  std::vector<base::NameRule<std::string>> texts;
  for (const FormatRule& rule : rules) texts.push_back({rule.pattern, std::string(name_of(rule.value))});
  base::check_name_rules(texts, names, where, "a matrix with a number format");
}

}  // namespace tessera::shard
