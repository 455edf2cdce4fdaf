// The peak of a processor's arithmetic, for mfu (run/model_flops.h).
#pragma once
#include <optional>
#include <string_view>

#include "tessera/base/device.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// Returns the dense bf16 peak of a GPU by its name, in flops per second, from NVIDIA's data sheets. Returns nullopt for
// an unknown name.
std::optional<double> bf16_peak_of(std::string_view gpu_name);

// Returns the setting peak_flops if it is above 0. Otherwise returns the peak of the device in the run's type if it is
// known: of a known GPU, in bf16.
std::optional<double> peak_flops_of(const TrainConfig& config, base::Device device);

}  // namespace tessera::run
