// The one thread of a process that makes MPI calls. It sleeps between looks at what is under way, so more ranks than
// cores work, and between start and end it never waits inside MPI, so every wait has its time limit.
#pragma once
#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/mpi/board_messages.h"

namespace tessera::comm {

using MpiDeadline = std::chrono::steady_clock::time_point;

// A communicator of MPI's, by its number here; 0 is MPI_COMM_WORLD. Messages of different contexts never meet.
using MpiContext = int;

// Messages that start together; done when all are. Peers are world ranks; messages between a pair match in order. Empty
// messages are sent too.
struct MpiRound {
  MpiContext context = 0;
  int tag = 0;
  std::string label;  // of the operation, for messages: "all_gather #3 on gtp[0,2], rank 0"
  MpiDeadline deadline;
  std::chrono::milliseconds timeout{};  // what the deadline was made from, for messages
  std::vector<Send> sends;
  std::vector<Receive> receives;
};

// Any thread may call what is public. After the first failure everything under way and everything
// later fails, and MPI is not called again.
class MpiProgress {
 public:
  // Starts the thread, which initialises MPI. Errors: MPI is in use in this process already. Here and in the destructor
  // MPI itself waits for the other ranks, and cannot be told to stop: see make_mpi_world.
  // connecting: as in make_mpi_world.
  MpiProgress(std::chrono::milliseconds timeout, std::chrono::milliseconds connecting);
  // After a clean run: waits for all ranks within the time limit, then finalises MPI.
  ~MpiProgress();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Both block until done. Errors (what happened, without the label): the time limit, with the peers that are missing;
  // a message of another size than expected; an earlier failure.
  void exchange(MpiRound round);
  // Collective over the world, one call at a time.
  MpiContext duplicate_world(const std::string& label, MpiDeadline deadline, std::chrono::milliseconds timeout);

  // From now on the thread also moves these statuses, in a context of their own. Once a process.
  void serve_boards(std::shared_ptr<MpiBoardMessages> board_messages, MpiContext context);

  // What is under way in `context` fails, and with it all else; later rounds of it fail without harm to others.
  void cancel(MpiContext context);
  // The run did not end well: leave MPI alone from here on.
  void give_up();

 private:
  struct Task;

  using Tasks = std::vector<std::unique_ptr<Task>>;

  void submit(std::unique_ptr<Task> task);
  bool is_over();
  // The rest runs on the thread.
  void initialise();
  void serve();
  Tasks take(std::chrono::microseconds pause, bool idle);
  bool is_finished(const Tasks& active);
  void start(Tasks fresh, Tasks& active);
  bool advance(Tasks& active);
  void check_limits(const Tasks& active);
  bool look_at_boards(MpiDeadline now);
  void fail(Task& task, const std::string& what);
  void fail(const std::string& label, const std::string& what);
  void answer_all(Tasks& active);
  void finalise();

  int rank_ = 0, size_ = 1;
  const std::chrono::milliseconds timeout_, connecting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Tasks queue_;
  std::set<MpiContext> cancelled_;
  std::string failure_;  // empty while all is well
  bool failed_ = false, closing_ = false, given_up_ = false;
  std::shared_ptr<MpiBoardMessages> board_messages_;  // null until there are boards
  MpiContext boards_context_ = 0;
  MpiDeadline next_look_{};         // at them; only the thread touches it
  std::vector<MPI_Comm> contexts_;  // likewise
  base::Fence ended_;               // the thread
  std::thread thread_;
};

}  // namespace tessera::comm
