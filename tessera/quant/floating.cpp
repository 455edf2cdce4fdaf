#include "tessera/quant/floating.h"

#include "tessera/base/error.h"

namespace tessera::quant {

void refuse_type(DType type, const char* expected, const char* where) {
  throw Error("{}: expected {}, got {}", where, expected, name_of(type));
}

}  // namespace tessera::quant
