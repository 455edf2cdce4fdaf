// Replaces the MPI backend if CMake finds no MPI.
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/world.h"

namespace tessera::comm {

bool mpi_available() {
  return false;
}

std::unique_ptr<World> make_mpi_world(const WorldOptions&, std::chrono::milliseconds, std::optional<bool>) {
  throw InputError(
      "backend mpi: this program was built without MPI; build it where an MPI library is installed, or use --backend "
      "local");
}

void abort_mpi(int exit_code) {
  std::_Exit(exit_code);
}

}  // namespace tessera::comm
