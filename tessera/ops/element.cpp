#include "tessera/ops/element.h"

#include "tessera/base/error.h"

namespace tessera::ops {

void refuse_type(quant::DType type, const char* expected) {
  throw Error("element type {}: expected {}", name_of(type), expected);
}

}  // namespace tessera::ops
