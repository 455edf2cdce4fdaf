#include "tessera/ops/optimizer/split_master.h"

namespace tessera::ops {

void make_representable(float* masters, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) masters[i] = representable(masters[i]);
}

}  // namespace tessera::ops
