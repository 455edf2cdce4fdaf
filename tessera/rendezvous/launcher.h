// What a launcher (torchrun, mpirun, srun) has told this process through environment variables.
#pragma once
#include <map>
#include <string>

namespace tessera::rendezvous {

using Variables = std::map<std::string, std::string>;

// This process's.
Variables own_variables();

struct Launch {
  std::string launcher;               // "torchrun", "mpirun", "srun"; "" for a process on its own
  bool is_self_started = false;       // run_processes has set torchrun's variables; no launcher was called
  int rank = 0, size = 1;             // in the world
  int local_rank = 0;                 // on this node
  std::string address = "127.0.0.1";  // where the store is, or comes to be
  int port = 29500;
  bool hosts_store = false;  // the launcher hosts the store there: rank 0 connects like the others
  int attempt = 0;           // of a launcher that starts failed ranks again and whose store lives on
  int socket = -1;           // rank 0's, already bound to the port; -1: it binds one
};

// In this order: RANK, WORLD_SIZE, LOCAL_RANK (torchrun; TORCHELASTIC_USE_AGENT_STORE says that it hosts the store, and
// TORCHELASTIC_RESTART_COUNT is Launch::attempt), OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK (Open MPI's mpirun),
// PMI_RANK, PMI_SIZE, MPI_LOCALRANKID (MPICH's), SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID (srun with several
// tasks), PMI_RANK, PMI_SIZE, PMI_LOCAL_RANK. MASTER_ADDR and MASTER_PORT where they are set; else this node, where all
// ranks are on it, or the first node of Slurm's step, and 29500. TESSERA_STORE_SOCKET: Launch::socket.
// TESSERA_SELF_STARTED: Launch::is_self_started. Errors (InputError): a variable missing or no such number, with what
// was expected and what is there.
Launch read_launch(const Variables& variables);
// launcher, is_self_started, rank and size alone, which need no more than these variables. Errors as above.
Launch read_ranks(const Variables& variables);

// The CUDA device of a process: its local rank, or the only one where a launcher shows each process one. Errors
// (InputError): fewer devices than local ranks.
int device_of(const Launch& launch, int devices);

// A port of this machine that nobody else can take while it lives.
class ReservedPort {
 public:
  // Errors: none is to be had.
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  int port() const { return port_; }
  int socket() const { return socket_; }  // bound to it; programs started from here do not inherit it

 private:
  int port_ = 0, socket_ = -1;
};

}  // namespace tessera::rendezvous
