// Replaces the NCCL backend if the library is built without CUDA.
#include "tessera/base/error.h"
#include "tessera/comm/nccl/world.h"

namespace tessera::comm {

bool nccl_available() {
  return false;
}

std::unique_ptr<World> make_nccl_world(const NcclOptions&) {
  throw InputError("backend nccl: this program was built without CUDA");
}

}  // namespace tessera::comm
