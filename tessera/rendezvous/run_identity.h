// Separates the ranks of one run from other runs that use the same store or the same port.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

// Returns 32 random hexadecimal digits.
std::string draw_identity();

// Returns `store` with a prefix before every key that no other run uses. Called once by every rank, on a store that all
// ranks reach. The prefix contains the identity of the run and the number of ranks.
//
// The identity is launch.run, if the launcher has set one. Otherwise rank 0 draws the identity and gives it once to
// each other rank, through `store`. A rank that finds another run in the store, or whose place a process has already
// taken, throws InputError, which names MASTER_PORT. Throws Error if rank 0 does not answer within `limit`.
std::shared_ptr<Store> join_run(std::shared_ptr<Store> store, const Launch& launch, std::chrono::milliseconds limit);

}  // namespace tessera::rendezvous
