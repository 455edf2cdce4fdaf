// The CUDA kernels that quantize and decode matrices of experts. Internal to ops.
#pragma once
#include "tessera/base/cuda_stream.h"
#include "tessera/ops/grouped/stacked_rows.h"

namespace tessera::ops::cuda {

// Writes the places of strips with `strip` rows. A matrix with fewer than `least` rows has the places of `least` rows.
void find_places(const StackedRows& source, std::int64_t strip, const StripPlaces& places, base::CudaStream stream,
                 int least);
void take_grouped_amaxes(const GroupedAmaxes& amaxes, base::CudaStream stream);
void cast_grouped(const GroupedCast& cast, base::CudaStream stream);
// Computes operand_scale of each amax. Writes the multipliers and the stored scales.
void scales_of_amaxes(const quant::Encoding& encoding, const float* amaxes, std::int64_t count, float* multipliers,
                      float* inverses, base::CudaStream stream);

}  // namespace tessera::ops::cuda
