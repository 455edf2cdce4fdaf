#include "tessera/base/device.h"

#include <fmt/format.h>

namespace tessera::base {

std::string name_of(Device device) {
  if (device.kind == DeviceKind::none) return "none";
  return device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

}  // namespace tessera::base
