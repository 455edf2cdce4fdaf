// Whether ranks may be started by a launcher.
#pragma once
#include <string_view>

#include "tessera/settings/config.h"

namespace tessera::launch {

// Throws InputError if a launcher started several processes but the ranks of `backend` are not processes. The message
// contains `expected`, the backends that run under a launcher.
void check_launcher(settings::Backend backend, std::string_view expected = "mpi or nccl");

}  // namespace tessera::launch
