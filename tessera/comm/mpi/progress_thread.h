// The only thread of a process that makes MPI calls. The thread sleeps between its polls of pending requests, so there
// can be more ranks than cores. Except in MPI's initialisation and finalisation, the thread never blocks inside MPI.
// Every other wait therefore has a time limit.
#pragma once
#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/base/process/running_clock.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/mpi/board_messages.h"

namespace tessera::comm {

using MpiDeadline = base::RunningClock::time_point;

// The number of an MPI communicator in this process; 0 is the communicator of the world. Messages of different contexts
// do not match.
using MpiContext = int;

// A round is a set of messages that start together. The round is done when all messages are done. Peers are world
// ranks. Messages between a pair match in order. Empty messages are also sent.
struct MpiRound {
  MpiContext context = 0;
  int tag = 0;
  std::string label;  // the operation, for error messages: "all_gather #3 on gtp[0,2], rank 0"
  MpiDeadline deadline;
  std::chrono::milliseconds timeout{};  // the time limit that ends at `deadline`, for error messages
  std::vector<Send> sends;
  std::vector<Receive> receives;
};

// Any thread may call the public functions. After the first failure all pending and later operations fail. The thread
// first cancels the pending receives and waits until MPI has finished with the buffers of the pending operations, for
// at most 500 ms: a peer that stopped may never receive a large message. Then the operations fail, and MPI is not
// called again.
class MpiProgress {
 public:
  // Starts the thread, which initialises MPI. Throws Error if this process already uses MPI. During the constructor and
  // the destructor MPI itself waits for the other ranks and cannot be interrupted (see make_mpi_world). `connecting`
  // and `takes_part` are as in make_mpi_world.
  MpiProgress(std::chrono::milliseconds timeout, std::chrono::milliseconds connecting, std::optional<bool> takes_part);
  // After a run without failure: waits for all ranks within the time limit, then finalises MPI.
  ~MpiProgress();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // The functions exchange() and duplicate_world() block until their messages are done. Both throw Error if the time
  // limit passes, if a message has an unexpected size, and after an earlier failure. If the time limit passes, the
  // error names the missing peers. The error text does not contain the label.
  void exchange(MpiRound round);
  // Collective over the world, one call at a time.
  MpiContext duplicate_world(const std::string& label, MpiDeadline deadline, std::chrono::milliseconds timeout);

  // Makes the thread also transfer the statuses of boards, in the context `context`. Called at most once in a process.
  void serve_boards(std::shared_ptr<MpiBoardMessages> board_messages, MpiContext context);

  // Makes the pending rounds in `context` fail. If there are such rounds, all other pending and later rounds also fail.
  // Otherwise only later rounds in `context` fail.
  void cancel(MpiContext context);
  // Called when the run has failed. The thread then makes no more MPI calls.
  void abandon();

 private:
  struct Task;

  using Tasks = std::vector<std::unique_ptr<Task>>;

  void submit(std::unique_ptr<Task> task);
  bool is_over();
  // The functions below run on the progress thread.
  void initialise();
  void serve();
  Tasks take(std::chrono::microseconds pause, bool idle);
  bool is_finished(const Tasks& active);
  void start(Tasks fresh, Tasks& active);
  bool advance(Tasks& active);
  void check_limits(const Tasks& active);
  // Tells rank_state.h for which ranks this rank waits.
  void note_waits(const Tasks& active);
  bool poll_boards(MpiDeadline now);
  void fail(Task& task, const std::string& what);
  void fail(const std::string& label, const std::string& what);
  void release(Tasks& active);
  void answer_all(Tasks& active);
  void wait_for_other_world();
  void finalise();

  int rank_ = 0, size_ = 1;
  const std::chrono::milliseconds timeout_, connecting_;
  const std::optional<bool> takes_part_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Tasks queue_;
  std::set<MpiContext> cancelled_;
  std::string failure_;  // empty: no failure
  bool failed_ = false, closing_ = false, abandoned_ = false;
  std::shared_ptr<MpiBoardMessages> board_messages_;  // null until there are boards
  MpiContext boards_context_ = 0;
  MpiDeadline next_note_{};         // time from which a pending task is noted; only the thread accesses it
  bool is_wait_noted_ = false;      // as next_note_
  std::string last_label_;          // label of the task that was noted last; as next_note_
  MpiDeadline next_poll_{};         // time of the next poll of the boards; only the thread accesses it
  std::vector<MPI_Comm> contexts_;  // by MpiContext; only the thread accesses it
  base::Fence ended_;               // done when the thread has ended
  std::thread thread_;
};

}  // namespace tessera::comm
