// Counters of a step.
#pragma once
#include <array>
#include <cstdint>
#include <limits>

#include "tessera/quant/formats/format.h"
#include "tessera/runtime/collective.h"

namespace tessera::runtime {

// Counters of one step on one rank, since the last begin_step.
struct StepStatistics {
  std::int64_t gathered_bytes = 0, reduced_bytes = 0;  // bytes that gathers and reductions received from other ranks
  // gathered_bytes by number format. Weights without a number format count as bf16, also if the model's type is fp32 or
  // fp64.
  std::array<std::int64_t, quant::kFormats> gathered_by_format{};
  // Bytes that the program's collectives received, by number format. Activations and gradients without a number format
  // count as bf16.
  std::array<std::int64_t, quant::kFormats> activations_by_format{};
  // Flops of this rank's products with weights, by the number format of the product.
  std::array<std::int64_t, quant::kFormats> flops_by_format{};
  std::array<std::int64_t, quant::kFormats> decoded_flops{};  // the part of flops_by_format of decoded products
  // Seconds that compute waited for communication. NaN on a GPU if the step was recorded or its waits were not
  // measured.
  double exposed_seconds = 0;
  // The part of exposed_seconds for the program's collectives, which exchange activations. The other part is for
  // weights, gradients and comparisons of ranks.
  double exposed_tp_seconds = 0;
  // On a GPU: seconds in which compute waited for the host to enqueue work (host_pace.h). 0 if this was not measured.
  double waiting_seconds = 0;
  std::int64_t demand_gathers = 0;  // number of gathers on demand
  // Number of times that compute made the columnwise copies of a unit, each with one launch. Without a schedule, each
  // weight is copied alone.
  std::int64_t columnwise_copies = 0;
  bool recorded = false;  // whether the step had no schedule
  bool departed = false;  // whether the step departed from its schedule
  // tp_pieces: pieces of activations that this rank received over tp. tp_fallbacks: pieces of a scheduled step that
  // were received outside the transfer arena. They cannot be pushed.
  std::int64_t tp_pieces = 0, tp_fallbacks = 0;
  TpWireFallbacks tp_wire_fallbacks{};  // gathers that sent bf16 numbers instead of codes
  std::int64_t padded_products = 0;     // products of experts whose operands this rank padded (ops/grouped/grouped.h)
  int unproduced = 0;                   // number of trainable parameters whose gradient was not produced in the step

  void count_gathered(quant::Format format, std::int64_t bytes) {
    gathered_bytes += bytes;
    gathered_by_format[static_cast<std::size_t>(format)] += bytes;
  }
};

// Marks the waits of the step as not measured.
inline void forget_waits(StepStatistics& statistics) {
  statistics.exposed_seconds = statistics.exposed_tp_seconds = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tessera::runtime
