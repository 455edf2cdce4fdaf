// The choice of number formats for weights, in storage and messages or in products: one format for all matrices, and
// rules by name for some.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quant/formats/format.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// `pattern` matches names of parameters like a shell pattern matches file names: * matches any characters.
struct FormatRule {
  std::string pattern;
  quant::Format format = quant::Format::bf16;
};

// The last rule that matches a parameter decides its format. Without a matching rule the format is `format`.
struct FormatPolicy {
  quant::Format format = quant::Format::bf16;
  std::vector<FormatRule> rules;

  bool is_bf16() const;
};

// Parses rules of the form "PATTERN=FORMAT,PATTERN=FORMAT". Throws InputError for any other text; its message begins
// with `where`.
std::vector<FormatRule> parse_format_rules(std::string_view text, std::string_view where);

// Sets the number format of a matrix's products. Leaves vectors, and tables whose rows are read by index, unchanged.
// Throws InputError if a rule gives such a table a format other than bf16, or if the model's type is not bf16.
void set_product(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);
// Sets the encoding of a matrix to the policy's format. Leaves vectors, and tables whose rows are read by index,
// unchanged. Throws InputError if a rule gives such a table a format other than bf16. Throws the errors of
// check_encoding.
void set_encoding(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);

// Gives the weight a backward weight in the policy's format, if its encoding for backward passes differs from its
// encoding for forward passes. If products in backward passes use that format, they read the stored backward weight
// without unpacking it. In mxfp8, the tiles of a backward weight are along the columns. Called after set_product and
// set_encoding. Throws the errors of set_encoding for the weight or its backward weight.
void set_backward(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);

// Throws InputError if a rule matches no name in `names`; its message begins with `where`.
void check_rules(std::span<const FormatRule> rules, std::span<const std::string> names, std::string_view where);

}  // namespace tessera::shard
