// A pending round of messages, or the pending creation of a context. Only the progress thread uses a task.
#pragma once
#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/mpi/progress_thread.h"

namespace tessera::comm {

// Returns the bytes of one MPI call for a message of `bytes` bytes; the last piece may be smaller. MPI's counts are
// ints, so a piece has at most 1 GiB. A large message consists of several pieces, so that MPI can transfer more data
// between two polls.
std::size_t mpi_piece(std::size_t bytes);

// Throws Error with MPI's text if `code` is not MPI_SUCCESS.
void check_mpi(int code, const char* call);

struct MpiProgress::Task {
  struct Request {
    int peer = -1;  // world rank; -1: all ranks
    bool receives = false;
    int bytes = 0;
  };

  MpiContext context = 0;
  std::string label;
  MpiDeadline deadline;
  std::chrono::milliseconds timeout{};
  std::function<void(Task&)> start;  // posts the requests
  std::function<void()> finish;      // called after the last request; may be empty
  std::string error;                 // why this task failed; empty: it did not fail itself
  base::Promise done;

  std::vector<MPI_Request> handles;
  std::vector<Request> requests;
  std::size_t completed = 0;

  void post(MPI_Comm comm, const MpiRound& round);
  // Polls once and returns the number of requests that completed. Throws Error if MPI fails or a message has the wrong
  // size.
  std::size_t test();
  bool is_done() const { return completed == handles.size(); }
  // Called after a failure. Cancels the receives that MPI has not matched with a message yet.
  void cancel_receives();
  // Called after cancel_receives. Polls once and returns whether MPI has finished with all buffers of the task.
  bool is_released();
  std::vector<int> missing_ranks() const;  // world ranks; empty: not known
  std::string missing() const;             // "nothing received from rank 3; not received by ranks 1, 2"

 private:
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace tessera::comm
