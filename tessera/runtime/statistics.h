// What a step moved and waited for.
#pragma once
#include <array>
#include <cstdint>

#include "tessera/quant/formats/format.h"

namespace tessera::runtime {

// Since the last begin_step, on this rank.
struct StepStatistics {
  std::int64_t gathered_bytes = 0, reduced_bytes = 0;  // received from other ranks
  // The gathered ones by their number format; those of weights without one count as bf16, whatever their type.
  std::array<std::int64_t, quant::kFormats> gathered_by_format{};
  // Received by collectives of the program, by number format; activations and gradients without one count as bf16.
  std::array<std::int64_t, quant::kFormats> activations_by_format{};
  // Of this rank's matrix products with weights, by the format they were made in.
  std::array<std::int64_t, quant::kFormats> flops_by_format{};
  // Compute waited for communication. NaN where compute is a GPU's and the step was recorded or its waits were not
  // measured.
  double exposed_seconds = 0;
  std::int64_t demand_gathers = 0;  // gathers that no schedule foresaw
  bool recorded = false;            // the step had no schedule
  bool departed = false;            // the step left its schedule
  int unproduced = 0;               // trainable parameters without a gradient in the whole step

  void count_gathered(quant::Format format, std::int64_t bytes) {
    gathered_bytes += bytes;
    gathered_by_format[static_cast<std::size_t>(format)] += bytes;
  }
};

}  // namespace tessera::runtime
