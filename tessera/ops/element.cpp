#include "tessera/ops/element.h"

#include "tessera/base/error.h"

namespace tessera::ops {

void refuse_type(base::DType type, const char* expected) {
  throw Error("element type {}: expected {}", base::name_of(type), expected);
}

}  // namespace tessera::ops
