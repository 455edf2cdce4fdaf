#include "tessera/telemetry/gpu/gpu_monitor.h"

namespace tessera::telemetry {

std::string pci_bus_id(base::Device) {
  return {};
}

std::string name_of_gpu(base::Device) {
  return {};
}

}  // namespace tessera::telemetry
