// Built where MPI is not found.
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/world.h"

namespace tessera::comm {

bool mpi_available() {
  return false;
}

std::unique_ptr<World> make_mpi_world(const WorldOptions&, std::chrono::milliseconds) {
  throw InputError(
      "backend mpi: this build has no MPI; expected a build on a machine with an MPI library, or --backend local");
}

void abort_mpi(int exit_code) {
  std::_Exit(exit_code);
}

}  // namespace tessera::comm
