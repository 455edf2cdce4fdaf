// Which weights have which number format, where they are stored and sent or in products: one for all matrices, and
// rules by name for some.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quant/formats/format.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// `pattern` is matched with parameters' names as a shell matches names of files: * stands for any characters.
struct FormatRule {
  std::string pattern;
  quant::Format format = quant::Format::bf16;
};

// The last rule that matches decides; without one it is `format`.
struct FormatPolicy {
  quant::Format format = quant::Format::bf16;
  std::vector<FormatRule> rules;

  bool is_bf16() const;
};

// Reads rules as "PATTERN=FORMAT,PATTERN=FORMAT". Errors (InputError, which begins with `where`): another text.
std::vector<FormatRule> parse_format_rules(std::string_view text, std::string_view where);

// Gives a matrix the number format of its products. Vectors, and tables of which rows are read by index, have none.
// Errors (InputError): a rule with a format other than bf16 for such a table; a format without the type bf16.
void set_product(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);
// Gives a matrix the encoding that the policy says. Vectors, and tables of which rows are read by index, stay as they
// are. Errors (InputError): a rule with a format other than bf16 for such a table; check_encoding's.
void set_encoding(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);

// What backward passes read: a backward weight in the format that the policy says, where that is not what forward
// passes read. A weight whose products are in that format, as mxfp8, is read as it is stored, so that its tiles lie
// along the columns. Comes after set_product and set_encoding. Errors: as set_encoding, about the weight or its
// backward weight.
void set_backward(ParameterSpec& spec, const FormatPolicy& policy, const ParameterTypes& types);

// Errors (InputError, which begins with `where`): a rule that matches none of these names.
void check_rules(std::span<const FormatRule> rules, std::span<const std::string> names, std::string_view where);

}  // namespace tessera::shard
