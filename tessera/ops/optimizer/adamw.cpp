#include "tessera/ops/optimizer/adamw.h"

#include "tessera/base/error.h"
#include "tessera/ops/optimizer/adamw_element.h"

namespace tessera::ops {

StepScalars step_scalars(const AdamW& options) {
  TESSERA_CHECK(options.step >= 1, "adamw: step {}: expected 1 or more", options.step);
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(options.step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(options.step));
  return {.decay = 1 - options.lr * options.weight_decay,
          .beta1_rest = 1 - options.beta1,
          .beta2 = options.beta2,
          .beta2_rest = 1 - options.beta2,
          .step_size = options.lr / correction1,
          .root_correction2 = std::sqrt(correction2),
          .eps = options.eps};
}

StepChoices step_choices(const AdamW& options) {
  StepChoices result{.first = options.step};
  AdamW next = options;
  for (StepScalars& scalars : result.choices) {
    scalars = step_scalars(next);
    ++next.step;
  }
  return result;
}

void check_adamw(const AdamWBuffers& buffers) {
  TESSERA_CHECK(buffers.count >= 0, "adamw: count {}: expected 0 or more", buffers.count);
  const bool present = buffers.master && buffers.gradient && buffers.exp_avg && buffers.exp_avg_sq;
  TESSERA_CHECK(present || buffers.count == 0, "adamw: master, gradient, exp_avg or exp_avg_sq is null for {} elements",
                buffers.count);
  TESSERA_CHECK(buffers.amax == nullptr || buffers.master_type == quant::DType::fp32,
                "adamw: an amax needs an fp32 master, got {}", name_of(buffers.master_type));
  const bool is_within = buffers.amax_offset >= 0 && buffers.amax_offset < buffers.amax_elements;
  TESSERA_CHECK(is_within || (buffers.amax_elements == 0 && buffers.amax_offset == 0),
                "adamw: the shard begins at element {} of a matrix of {} elements, expected an element of the matrix",
                buffers.amax_offset, buffers.amax_elements);
  TESSERA_CHECK(
      buffers.weight != buffers.master || buffers.weight == nullptr || buffers.weight_type == buffers.master_type,
      "adamw: the weight shares the master's memory, expected one type, got weight {} and master {}",
      name_of(buffers.weight_type), name_of(buffers.master_type));
}

}  // namespace tessera::ops
