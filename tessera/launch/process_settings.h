// Settings of libtorch that all ranks of a process share.
#pragma once
#include <cstdint>

namespace tessera::launch {

// Sets the number of threads of an operator and whether attention is deterministic (ops::set_deterministic). Call this
// function once in a process, before its ranks start: libtorch stores the settings without a lock.
void set_up_process(std::int64_t threads, bool deterministic);
// Gives the calling thread the number of threads of set_up_process. Called by each rank's thread before its first
// operator, because OpenMP and MKL store the number for each thread.
void set_up_rank_thread();

}  // namespace tessera::launch
