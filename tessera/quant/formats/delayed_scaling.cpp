#include "tessera/quant/formats/delayed_scaling.h"

namespace tessera::quant {

void update_multipliers(const DelayedScaling& scaling) {
  for (std::int64_t tensor = 0; tensor < scaling.tensors; ++tensor) update_multiplier(scaling, tensor);
}

}  // namespace tessera::quant
