// The peak flops of a processor, for mfu (predict/model_flops.h).
#pragma once
#include <optional>
#include <string_view>

#include "tessera/base/device.h"
#include "tessera/quant/dtype.h"

namespace tessera::telemetry {

// Returns the peak of dense bf16 products of a GPU in flops per second, from NVIDIA's data sheets. `gpu_name` is the
// name of the GPU. Returns nullopt for an unknown name.
std::optional<double> bf16_peak_of(std::string_view gpu_name);

// Returns `given` (--peak-flops) if it is above 0. Otherwise returns the peak of the device in products of `dtype`.
// This peak is known only for bf16 on a GPU that bf16_peak_of knows. Returns nullopt otherwise.
std::optional<double> peak_flops_of(double given, quant::DType dtype, base::Device device);

}  // namespace tessera::telemetry
