// Values that no gradient reaches, such as the biases of routers.
#pragma once
#include <cstdint>
#include <string>

#include "tessera/quant/dtype.h"

namespace tessera::train {

// Throws InputError if some of the `elements` values are NaN or infinite. `data` is host memory, and `name` is the name
// of the parameter. Called for parameters without gradients: such values would not be seen in a loss or a gradient.
void require_finite(const std::string& name, quant::DType type, void* data, std::int64_t elements);

}  // namespace tessera::train
