// A library with the functions of NVML that the program calls, and one GPU. IMITATED_NVML_WITHOUT names a function that
// fails: "errors" or "power".
#include <cstdlib>
#include <cstring>

namespace {
int gpu = 0;
constexpr int kNotSupported = 3, kNotFound = 6;

bool is_missing(const char* what) {
  const char* missing = std::getenv("IMITATED_NVML_WITHOUT");
  return missing != nullptr && std::strcmp(missing, what) == 0;
}
}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names of NVML
extern "C" {
int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &gpu;
  return std::strcmp(bus_id, "00000000:17:00.0") == 0 ? 0 : kNotFound;
}
int nvmlDeviceGetClockInfo(void* device, int which, unsigned* mhz) {
  *mhz = 1755;
  return device == &gpu && which == 1 ? 0 : kNotSupported;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 612500;
  return device == &gpu && !is_missing("power") ? 0 : kNotSupported;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* count) {
  *count = 3;
  return device == &gpu && type == 1 && counter == 0 && !is_missing("errors") ? 0 : kNotSupported;
}
}
// NOLINTEND(readability-identifier-naming)
