#include "tessera/models/step_options.h"

namespace tessera::models {

nn::Context make_context(runtime::Program& program, const StepOptions& options, nn::DelayedScales& scales,
                         const nn::ExpertRoom* room) {
  return {.program = program,
          .sequence_parallel = options.sequence_parallel && program.nominal_size() > 1,
          .recompute = options.recompute,
          .products = options.products,
          .scales = options.products.scaling == nn::Fp8Scaling::delayed ? &scales : nullptr,
          .split = options.split,
          .dropout = options.dropout,
          .random = {.seed = options.seed},
          .expert_room = room};
}

}  // namespace tessera::models
