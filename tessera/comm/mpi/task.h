// One round of messages, or the making of a context, while it is under way. Only the progress thread uses it.
#pragma once
#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/mpi/progress_thread.h"

namespace tessera::comm {

// Bytes that one MPI call moves of a message of `bytes`; the last piece may be smaller. MPI's counts are ints, so at
// most 1 GiB; and several pieces travel side by side, which keeps more fragments under way between two looks.
std::size_t mpi_piece(std::size_t bytes);

// Throws Error with MPI's own text when `code` is not success.
void check_mpi(int code, const char* call);

struct MpiProgress::Task {
  struct Request {
    int peer = -1;  // world rank; -1: all
    bool receives = false;
    int bytes = 0;
  };

  MpiContext context = 0;
  std::string label;
  MpiDeadline deadline;
  std::chrono::milliseconds timeout{};
  std::function<void(Task&)> start;  // posts the requests
  std::function<void()> finish;      // after the last one; may be empty
  base::Promise done;

  std::vector<MPI_Request> handles;
  std::vector<Request> requests;
  std::size_t completed = 0;

  void post(MPI_Comm comm, const MpiRound& round);
  // Looks once; returns how many requests were completed. Throws Error: MPI failed, a message of the wrong size.
  std::size_t test();
  bool is_done() const { return completed == handles.size(); }
  std::string missing() const;  // "nothing received from rank 3; not taken by ranks 1, 2"

 private:
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace tessera::comm
