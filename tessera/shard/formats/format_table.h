// Lists how many elements of a model each number format has, and why other weights have no number format. Pure.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quant/formats/format.h"
#include "tessera/shard/formats/format_policy.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Why a weight has no number format.
enum class NoFormat : std::uint8_t {
  by_default,  // no rule names the weight, and the policy keeps it in the run's type
  rule,        // a rule of the user
  table,       // the rows of the table are read by index
  router,
  vector,
};
std::string_view name_of(NoFormat reason);  // "default", "rule", "table read by index", "router", "vector"

// Weights without a number format for one reason.
struct WithoutFormat {
  NoFormat reason{};
  std::int64_t elements = 0;
  // Patterns of names, without repetition. rule: the patterns of the rules. by_default: "*" if the policy's format is
  // bf16, because these weights are all those that no rule names.
  std::vector<std::string> patterns;

  bool operator==(const WithoutFormat&) const = default;
};

// The number formats in one use of the weights.
struct FormatShares {
  std::array<std::int64_t, quant::kFormats> elements{};  // by format; bf16: weights without a number format
  std::vector<WithoutFormat> without;                    // by reason; the elements add up to those of bf16

  bool operator==(const FormatShares&) const = default;
  std::int64_t total() const;  // number of elements of all weights
};

// The uses: weights as they are stored and sent for forward passes, as backward passes read them, and in products.
struct FormatTable {
  FormatShares wire, wire_backward, products;
  // By the format of the products: elements of weights that are quantized at each use (is_quantized_at_use).
  std::array<std::int64_t, quant::kFormats> quantized_at_use{};
};

struct FormatPolicies {
  FormatPolicy wire, wire_backward, products;
};

// Sets the formats of a parameter by the three policies. Throws the errors of set_encoding, set_product, set_backward.
void set_formats(ParameterSpec& spec, const FormatPolicies& policies, const ParameterTypes& types);
// Returns the table of parameters whose formats were set by `policies`.
FormatTable format_table(std::span<const ParameterSpec> specs, const FormatPolicies& policies);

}  // namespace tessera::shard
