// Chooses the number formats of weights: one format for all matrices, and rules by name for single matrices. One policy
// chooses the formats for storage and messages, another policy the formats of products.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/text/name_rules.h"
#include "tessera/quant/formats/format.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// The format of the parameters whose names match a pattern.
using FormatRule = base::NameRule<quant::Format>;

// The format of a parameter is that of the last rule that matches its name, or `format` if no rule matches.
struct FormatPolicy {
  quant::Format format = quant::Format::bf16;
  std::vector<FormatRule> rules;
  std::string rule_name = "rule";  // the words before a rule in messages, such as "--wire-rules"
  quant::StackChoice stacks;       // of products: how a GPU multiplies stacks of matrices

  bool is_bf16() const;
};

// Parses rules of the form "PATTERN=FORMAT,PATTERN=FORMAT". Throws InputError for any other text; its message begins
// with `where`.
std::vector<FormatRule> parse_format_rules(std::string_view text, std::string_view where);

// Sets spec.product, the number format of a matrix's products, and spec.kernels of a stack. Does not change vectors and
// tables whose rows are read by index. Throws InputError if a rule gives such a table a format other than bf16, or if
// the model's type is not bf16.
void set_product(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);
// Sets spec.encoding of a matrix to the policy's format. Does not change vectors and tables whose rows are read by
// index. Throws the errors of check_encoding, and InputError if a rule gives such a table a format other than bf16.
void set_encoding(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);

// Sets spec.backward, so that the weight gets a backward weight in the policy's format. Does nothing if forward and
// backward passes use the same encoding. If products in backward passes use that format, they read the backward weight
// without unpacking. In mxfp8, the tiles of a backward weight extend along the columns. Called after set_product and
// set_encoding. Throws the errors of set_encoding for the weight or its backward weight.
void set_backward(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);

// Calls base::check_name_rules for names of matrices with number formats.
void check_rules(std::span<const FormatRule> rules, std::span<const std::string> names, std::string_view where);

}  // namespace tessera::shard
