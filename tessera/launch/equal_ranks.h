// Checks that the ranks of a run were started with the same settings. mpirun and torchrun may start ranks with
// different flags, or with different files under one path. Such ranks would train without an error, and with wrong
// results.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "tessera/comm/communicator.h"

namespace tessera::launch {

// Throws InputError on every rank if `own` differs from rank 0's value on some rank. The message names the lowest such
// rank and the first name whose value differs. Collective.
void require_equal(comm::Communicator& world, const nlohmann::json& own);

}  // namespace tessera::launch
