#include "tessera/run/metrics/gpu_monitor.h"

namespace tessera::run {

std::string pci_bus_id(base::Device) {
  return {};
}

std::string name_of_gpu(base::Device) {
  return {};
}

}  // namespace tessera::run
