// Reads the clock, power and errors of one GPU from NVML, the management library of NVIDIA's driver. The library is
// loaded at run time. Without the library or the GPU, read() returns nullopt.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/device.h"
#include "tessera/telemetry/gpu/gpu_reading.h"

namespace tessera::telemetry {

inline constexpr const char* kNvml = "libnvidia-ml.so.1";

// Returns the PCI bus id of a CUDA device. Returns an empty text for the CPU and in a build without CUDA.
std::string pci_bus_id(base::Device device);
// Returns the name of a CUDA device, such as "NVIDIA H200". Returns an empty text for the CPU and in a build without
// CUDA.
std::string name_of_gpu(base::Device device);

// Used by one thread.
class GpuMonitor {
 public:
  // library: the file that dlopen loads. If `bus_id` is empty, there is no GPU, and the library is not loaded.
  explicit GpuMonitor(const std::string& bus_id, const std::string& library = kNvml);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // The first call takes some milliseconds, later calls about 10 microseconds. Returns nullopt if NVML or the GPU is
  // missing, or if NVML reports an error for clock or power. A GPU without counters of memory errors has 0 errors.
  std::optional<GpuReading> read() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;  // null: read() returns nullopt
};

}  // namespace tessera::telemetry
