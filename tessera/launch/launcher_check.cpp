#include "tessera/launch/launcher_check.h"

#include "tessera/base/error.h"
#include "tessera/rendezvous/launcher.h"

namespace tessera::launch {

void check_launcher(settings::Backend backend, std::string_view expected) {
  if (backend != settings::Backend::local) return;
  const rendezvous::Launch launch = rendezvous::read_ranks(rendezvous::own_variables());
  if (launch.size == 1) return;
  const bool has_mpi = launch.launcher != "torchrun" && expected != "nccl";
  throw InputError("--backend: got {}, expected {}: {} started {} processes{}", name_of(backend),
                   has_mpi ? "mpi (ranks on CPUs) or nccl (on GPUs)" : "nccl (ranks on GPUs)", launch.launcher,
                   launch.size, " (without a launcher, local's ranks are threads of one process)");
}

}  // namespace tessera::launch
