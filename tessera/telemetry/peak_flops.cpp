#include "tessera/telemetry/peak_flops.h"

#include <array>

#include "tessera/telemetry/gpu/gpu_monitor.h"

namespace tessera::telemetry {
namespace {

struct GpuPeak {
  std::string_view model;  // a part of the GPU's name
  double bf16 = 0;         // peak flops per second without sparsity
};

// The first match is used. Therefore variants with lower clocks or fewer multiprocessors are listed before the other
// cards of their family.
constexpr std::array kPeaks{GpuPeak{"H200 NVL", 835e12},  GpuPeak{"H200", 989e12},  GpuPeak{"H100 PCIe", 756e12},
                            GpuPeak{"H100 NVL", 835e12},  GpuPeak{"GH200", 989e12}, GpuPeak{"H100", 989e12},
                            GpuPeak{"H800 PCIe", 756e12}, GpuPeak{"H800", 989e12},  GpuPeak{"H20", 148e12}};

}  // namespace

std::optional<double> bf16_peak_of(std::string_view gpu_name) {
  for (const GpuPeak& peak : kPeaks)
    if (gpu_name.find(peak.model) != std::string_view::npos) return peak.bf16;
  return std::nullopt;
}

std::optional<double> peak_flops_of(double given, quant::DType dtype, base::Device device) {
  if (given > 0) return given;
  if (dtype != quant::DType::bf16) return std::nullopt;
  return bf16_peak_of(name_of_gpu(device));
}

}  // namespace tessera::telemetry
