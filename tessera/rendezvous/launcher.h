// Reads the environment variables that a launcher (torchrun, mpirun, srun) sets for this process.
#pragma once
#include <map>
#include <string>

namespace tessera::rendezvous {

using Variables = std::map<std::string, std::string>;

// Returns the environment variables of this process.
Variables own_variables();

struct Launch {
  std::string launcher;               // "torchrun", "mpirun", "srun"; "": started without a launcher
  bool is_self_started = false;       // true: run_processes started this process and set torchrun's variables
  int rank = 0, size = 1;             // rank in the world, number of ranks
  int local_rank = 0;                 // rank on this node
  std::string address = "127.0.0.1";  // address of the store
  int port = 29500;
  bool hosts_store = false;  // true: the launcher hosts the store, and rank 0 connects to it like the other ranks
  bool is_one_host = true;   // whether all ranks are known to run on this host
  std::string run;           // identity of the run, equal on all of its ranks; "": the launcher sets none
  int attempt = 0;           // number of times that the launcher has restarted the ranks; its store survives restarts
  int socket = -1;           // for rank 0: a socket that is already bound to the port; -1: rank 0 binds a socket itself
};

// Reads the launch from `variables`. Uses the first of these sets whose rank and size are present:
// - RANK, WORLD_SIZE, LOCAL_RANK: torchrun. TORCHELASTIC_USE_AGENT_STORE sets hosts_store, and
// TORCHELASTIC_RESTART_COUNT is `attempt`.
// - OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK: Open MPI's mpirun.
// - PMI_RANK, PMI_SIZE, MPI_LOCALRANKID: MPICH's mpirun.
// - SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID: srun with several tasks.
// - PMI_RANK, PMI_SIZE, PMI_LOCAL_RANK.
//
// MASTER_ADDR and MASTER_PORT set the store's address and port. The default port is 29500. All ranks are known to run
// on this host if the launcher sets a number of local ranks that equals the number of ranks, if Slurm's step has one
// node, or if MASTER_ADDR is a loopback address. The address is then 127.0.0.1, unless the launcher hosts the store. By
// default the address is otherwise the first node of Slurm's step.
//
// TESSERA_RUN_ID is `run`. Without this variable, `run` is torchrun's TORCHELASTIC_RUN_ID, Open MPI's PMIX_NAMESPACE,
// or Slurm's job and step. TESSERA_STORE_SOCKET is `socket`, and TESSERA_SELF_STARTED sets is_self_started. Throws
// InputError if a variable is missing, is not a valid number, or is too long. The message contains the expected and the
// actual value.
Launch read_launch(const Variables& variables);
// Like read_launch, but sets only launcher, is_self_started, rank and size, and requires only their variables.
Launch read_ranks(const Variables& variables);

// Returns the CUDA device of a process. `devices` is the number of visible devices. The device is the local rank, or 0
// if the launcher makes one device visible to each process. Throws InputError if there are fewer devices than local
// ranks.
int device_of(const Launch& launch, int devices);

}  // namespace tessera::rendezvous
