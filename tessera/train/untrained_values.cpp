#include "tessera/train/untrained_values.h"

#include <ATen/ops/isfinite.h>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"

namespace tessera::train {

void require_finite(const std::string& name, quant::DType type, void* data, std::int64_t elements) {
  const at::Tensor values = ops::view_of(data, {elements}, type, at::kCPU);
  const std::int64_t others = elements - at::isfinite(values).sum().item<std::int64_t>();
  if (others > 0)
    throw InputError("{}: {} of {} values are NaN or infinite, expected numbers: no loss or gradient would show them",
                     name, others, elements);
}

}  // namespace tessera::train
