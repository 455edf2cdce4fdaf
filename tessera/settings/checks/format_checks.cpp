#include "tessera/settings/checks/format_checks.h"

#include <string_view>

#include "tessera/base/error.h"

namespace tessera::settings {

void check_formats_have_weights(const TrainConfig& config, const shard::FormatTable& table) {
  const auto check = [&](std::string_view flag, quant::Format format, const shard::FormatShares& shares) {
    if (format != quant::Format::bf16 && shares.elements[static_cast<std::size_t>(format)] == 0)
      throw InputError(
          "{}: got {}, but no weight of model '{}' has it: expected bf16, or rules that leave a weight to it", flag,
          name_of(format), config.model);
  };
  check("--wire-format", config.wire_format, table.wire);
  if (config.wire_format_backward) check("--wire-format-backward", *config.wire_format_backward, table.wire_backward);
  check("--gemm-format", config.gemm_format, table.products);
}

}  // namespace tessera::settings
