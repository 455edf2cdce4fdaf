#include "tessera/base/device.h"

#include <fmt/format.h>

namespace tessera::base {

std::string name_of(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

}  // namespace tessera::base
