// Counters of a step.
#pragma once
#include <array>
#include <cstdint>

#include "tessera/quant/formats/format.h"

namespace tessera::runtime {

// Since the last begin_step, on this rank.
struct StepStatistics {
  std::int64_t gathered_bytes = 0, reduced_bytes = 0;  // received from other ranks
  // The gathered bytes by number format. Weights without a format count as bf16, for every type.
  std::array<std::int64_t, quant::kFormats> gathered_by_format{};
  // Bytes received by collectives of the program, by number format. Activations and gradients without a format count as
  // bf16.
  std::array<std::int64_t, quant::kFormats> activations_by_format{};
  // Operations of this rank's matrix products with weights, by the format of the product.
  std::array<std::int64_t, quant::kFormats> flops_by_format{};
  // Time in which compute waited for communication. NaN on a GPU if the step was recorded or did not measure its waits.
  double exposed_seconds = 0;
  std::int64_t demand_gathers = 0;  // gathers without a schedule
  bool recorded = false;            // whether the step had no schedule
  bool departed = false;            // whether the step departed from its schedule
  // Pieces of activations that this rank received over tp. Transfers whose pieces were received outside the arena,
  // although the step has a schedule.
  std::int64_t tp_pieces = 0, tp_fallbacks = 0;
  int unproduced = 0;  // trainable parameters without a gradient in the whole step

  void count_gathered(quant::Format format, std::int64_t bytes) {
    gathered_bytes += bytes;
    gathered_by_format[static_cast<std::size_t>(format)] += bytes;
  }
};

}  // namespace tessera::runtime
