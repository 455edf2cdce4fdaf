#include "tessera/telemetry/gpu/gpu_monitor.h"

#include <dlfcn.h>

namespace tessera::telemetry {
namespace {

// Declares the part of nvml.h that is used here. The interface of NVML is stable, and not every CUDA installation has
// the header.
using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr int kClockOfMultiprocessors = 1;  // NVML_CLOCK_SM
constexpr int kUncorrected = 1;             // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int kVolatile = 0;                // NVML_VOLATILE_ECC

template <typename Function>
bool bind(void* handle, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(handle, name));
  return function != nullptr;
}

}  // namespace

struct GpuMonitor::Library {
  void* handle = nullptr;
  NvmlDevice device = nullptr;
  bool is_initialised = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*find)(const char*, NvmlDevice*) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*errors)(NvmlDevice, int, int, unsigned long long*) = nullptr;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (is_initialised) shutdown();
    if (handle != nullptr) dlclose(handle);
  }

  // Returns whether the device can be read.
  bool open(const std::string& path, const std::string& bus_id) {
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    if (!bind(handle, "nvmlInit_v2", init) || !bind(handle, "nvmlShutdown", shutdown) ||
        !bind(handle, "nvmlDeviceGetHandleByPciBusId_v2", find) || !bind(handle, "nvmlDeviceGetClockInfo", clock) ||
        !bind(handle, "nvmlDeviceGetPowerUsage", power) || !bind(handle, "nvmlDeviceGetTotalEccErrors", errors))
      return false;
    is_initialised = init() == kSuccess;
    return is_initialised && find(bus_id.c_str(), &device) == kSuccess;
  }
};

GpuMonitor::GpuMonitor(const std::string& bus_id, const std::string& library) {
  if (bus_id.empty()) return;
  auto opened = std::make_unique<Library>();
  if (opened->open(library, bus_id)) library_ = std::move(opened);
}

GpuMonitor::~GpuMonitor() = default;

std::optional<GpuReading> GpuMonitor::read() const {
  if (!library_) return std::nullopt;
  unsigned mhz = 0, milliwatts = 0;
  if (library_->clock(library_->device, kClockOfMultiprocessors, &mhz) != kSuccess) return std::nullopt;
  if (library_->power(library_->device, &milliwatts) != kSuccess) return std::nullopt;
  unsigned long long errors = 0;
  if (library_->errors(library_->device, kUncorrected, kVolatile, &errors) != kSuccess) errors = 0;
  return GpuReading{.clock_mhz = static_cast<double>(mhz),
                    .power_w = static_cast<double>(milliwatts) / 1e3,
                    .errors = static_cast<std::int64_t>(errors)};
}

}  // namespace tessera::telemetry
