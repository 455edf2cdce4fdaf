// Checks that the ranks of a run were started with the same settings. mpirun and torchrun may start ranks with
// different flags, or with different files under one path. Such ranks would train without an error, and with wrong
// results.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "tessera/comm/communicator.h"
#include "tessera/run/run_setup.h"

namespace tessera::run {

// Returns what must be equal on all ranks, as an object of names and values: the settings by flag, the model, the data
// sets, the first step, and the kind of the first weights. A checkpoint of step 0 and no checkpoint have the same first
// step, but only a checkpoint is loaded by all ranks together. Leaves out paths and the peak rate of the hardware,
// which may differ between hosts.
nlohmann::json equal_on_all_ranks(const RunSetup& setup);

// Throws InputError on every rank if `own` differs from rank 0's value on some rank. The message names the lowest such
// rank and the first name whose value differs. Collective.
void require_equal(comm::Communicator& world, const nlohmann::json& own);

}  // namespace tessera::run
