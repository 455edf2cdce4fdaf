#include "tessera/run/version_text.h"

#include <fmt/format.h>
#include <torch/version.h>

#include "tessera/base/version.h"
#include "tessera/comm/mpi/world.h"
#include "tessera/comm/nccl/world.h"

namespace tessera::run {

std::string version_text() {
  const auto word = [](bool is_there) { return is_there ? "yes" : "no"; };
  return fmt::format("tessera {}\nlibtorch {}\nCUDA {}\nMPI {}\n", base::kVersion, TORCH_VERSION,
                     word(comm::nccl_available()), word(comm::mpi_available()));
}

}  // namespace tessera::run
