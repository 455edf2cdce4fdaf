#include "tessera/comm/mpi/progress_thread.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/task.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/states/rank_state.h"

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using Clock = base::RunningClock;

// The pause between two polls. It grows with the time since the last completed request, so that its share of a wait is
// small.
constexpr microseconds kShortestPause{10}, kLongestPause{300};
constexpr int kPauseShare = 8;
// The pause of a process that does not take part in the run and waits for the end of the run.
constexpr microseconds kIdlePause{100000};
// Statuses are polled less often, because a status is needed only if some rank has already waited for a long time.
constexpr microseconds kBoardPause{4000};
// A task that is pending for this time is a wait for other ranks.
constexpr std::chrono::milliseconds kNotedWait{200};

// The longest time that MPI may keep the buffers of operations after a failure.
constexpr std::chrono::milliseconds kReleasing{500};

microseconds pause_after(Clock::duration idle) {
  return std::clamp(std::chrono::duration_cast<microseconds>(idle) / kPauseShare, kShortestPause, kLongestPause);
}

bool is_done_within(std::chrono::milliseconds limit, const base::Fence& fence) {
  return base::wait_until(Clock::now() + limit, [&](Clock::duration part) { return fence.wait_for(part); });
}

// Names this process before MPI has assigned its rank.
std::string launched_as() {
  try {
    const rendezvous::Launch launch = rendezvous::read_ranks(rendezvous::own_variables());
    if (!launch.launcher.empty()) return fmt::format("rank {}", launch.rank);
  } catch (const InputError&) {
    // In this case, the name contains the process id.
  }
  return fmt::format("process {}", getpid());
}

// A process cannot leave MPI while MPI waits for other ranks. This process therefore exits, and the launcher ends the
// other processes.
[[noreturn]] void end_process(const std::string& who, const char* call, std::chrono::milliseconds limit) {
  fmt::print(stderr,
             "tessera: {}: {}: expected all ranks within {} ms, but the call did not return: a rank has stopped or did "
             "not start\n",
             who, call, limit.count());
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace

MpiProgress::MpiProgress(std::chrono::milliseconds timeout, std::chrono::milliseconds connecting,
                         std::optional<bool> takes_part)
    : timeout_(timeout), connecting_(std::max(timeout, connecting)), takes_part_(takes_part) {
  base::Promise started, ended;
  const base::Fence fence = started.fence();
  ended_ = ended.fence();
  thread_ = std::thread([this, started, ended]() mutable {
    pthread_setname_np(pthread_self(), "mpi");
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // a slack of 1000 ns, so that short sleeps do not take longer
    try {
      initialise();
    } catch (...) {
      return started.complete(std::current_exception());
    }
    started.complete();
    serve();
    ended.complete();
  });
  if (!is_done_within(connecting_, fence)) end_process(launched_as(), "MPI_Init_thread", connecting_);
  try {
    fence.synchronize();
  } catch (...) {
    thread_.join();
    throw;
  }
}

MpiProgress::~MpiProgress() {
  try {
    MpiRound round{.label = "end of the run", .deadline = Clock::now() + timeout_, .timeout = timeout_};
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      round.sends.push_back({.peer = peer});
      round.receives.push_back({.peer = peer});
    }
    // Waits until the peers have received the pending statuses of this rank. A peer receives statuses until it has also
    // reached this point.
    while (board_messages_ != nullptr && !board_messages_->is_idle() && !is_over() && Clock::now() < round.deadline)
      std::this_thread::sleep_for(kShortestPause);
    if (board_messages_ != nullptr && !board_messages_->is_idle())
      fail(round.label, "other ranks did not receive the statuses of this rank");
    if (!is_over()) exchange(std::move(round));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: MPI is not finalised: %s\n", rank_, error.what());
  }
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  if (takes_part_ == false) ended_.wait();
  if (!is_done_within(connecting_, ended_)) end_process(fmt::format("rank {}", rank_), "MPI_Finalize", connecting_);
  thread_.join();
}

void MpiProgress::initialise() {
  int initialised = 0, level = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) throw Error("mpi backend: this process already uses MPI; expected one world per process");
  // MPI treats the thread that initialises it as the main thread, so MPI_THREAD_FUNNELED is sufficient.
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
  if (level < MPI_THREAD_FUNNELED)
    throw Error("mpi backend: expected an MPI with threads (funneled), got level {}", level);
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm world = MPI_COMM_WORLD;
  if (takes_part_) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    check_mpi(MPI_Comm_split(MPI_COMM_WORLD, *takes_part_ ? 0 : 1, rank_, &world), "MPI_Comm_split");
    check_mpi(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  MPI_Comm_rank(world, &rank_);
  MPI_Comm_size(world, &size_);
  contexts_.push_back(world);
}

// Waits for the processes of the other world. A process that does not take part sleeps until then.
void MpiProgress::wait_for_other_world() {
  MPI_Request all = MPI_REQUEST_NULL;
  int done = 0;
  for (MPI_Ibarrier(MPI_COMM_WORLD, &all); MPI_Test(&all, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0;)
    std::this_thread::sleep_for(*takes_part_ ? kLongestPause : kIdlePause);
}

void MpiProgress::finalise() {
  if (takes_part_) {
    wait_for_other_world();
    MPI_Comm_free(&contexts_.front());
  }
  for (std::size_t i = 1; i < contexts_.size(); ++i) MPI_Comm_free(&contexts_[i]);
  MPI_Finalize();
}

void MpiProgress::exchange(MpiRound round) {
  auto task = std::make_unique<Task>();
  task->context = round.context;
  task->label = round.label;
  task->deadline = round.deadline;
  task->timeout = round.timeout;
  task->start = [this, &round](Task& self) { self.post(contexts_[static_cast<std::size_t>(round.context)], round); };
  const base::Fence done = task->done.fence();
  submit(std::move(task));
  done.synchronize();
}

MpiContext MpiProgress::duplicate_world(const std::string& label, MpiDeadline deadline,
                                        std::chrono::milliseconds timeout) {
  auto task = std::make_unique<Task>();
  task->label = label;
  task->deadline = deadline;
  task->timeout = timeout;
  const auto made = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  MpiContext context = 0;
  task->start = [this, made](Task& self) {
    self.requests.push_back({});
    check_mpi(MPI_Comm_idup(contexts_.front(), made.get(), &self.handles.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Comm_idup");
  };
  task->finish = [this, made, &context] {
    check_mpi(MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    context = static_cast<MpiContext>(contexts_.size());
    contexts_.push_back(*made);
  };
  const base::Fence done = task->done.fence();
  submit(std::move(task));
  done.synchronize();
  return context;
}

void MpiProgress::serve_boards(std::shared_ptr<MpiBoardMessages> board_messages, MpiContext context) {
  {
    std::lock_guard lock(mutex_);
    board_messages_ = std::move(board_messages);
    boards_context_ = context;
  }
  changed_.notify_one();
}

void MpiProgress::submit(std::unique_ptr<Task> task) {
  {
    std::lock_guard lock(mutex_);
    if (failed_) throw Error("an earlier operation failed: {}", failure_);
    if (cancelled_.contains(task->context)) throw Error("the rank is ending with another error");
    queue_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void MpiProgress::cancel(MpiContext context) {
  {
    std::lock_guard lock(mutex_);
    cancelled_.insert(context);
  }
  changed_.notify_one();
}

void MpiProgress::abandon() {
  std::lock_guard lock(mutex_);
  abandoned_ = true;
}

bool MpiProgress::is_over() {
  std::lock_guard lock(mutex_);
  return failed_ || abandoned_;
}

void MpiProgress::fail(const std::string& label, const std::string& what) {
  std::lock_guard lock(mutex_);
  if (!failed_) failure_ = fmt::format("{}: {}", label, what);
  failed_ = true;
}

void MpiProgress::fail(Task& task, const std::string& what) {
  fail(task.label, what);
  if (task.error.empty()) task.error = what;
}

// Waits for new tasks and returns them. Waits without limit if no other work is pending, otherwise for at most `pause`.
MpiProgress::Tasks MpiProgress::take(microseconds pause, bool idle) {
  std::unique_lock lock(mutex_);
  const bool had_boards = board_messages_ != nullptr;
  const auto woken = [&] { return closing_ || !queue_.empty() || had_boards != (board_messages_ != nullptr); };
  if (idle && (!had_boards || failed_ || abandoned_))
    changed_.wait(lock, woken);
  else if (idle)
    changed_.wait_for(lock, kBoardPause, woken);
  else if (pause.count() > 0)
    changed_.wait_for(lock, pause, woken);
  return std::exchange(queue_, {});
}

void MpiProgress::start(Tasks fresh, Tasks& active) {
  for (auto& task : fresh) {
    try {
      if (!is_over()) task->start(*task);
      rendezvous::note_operation(rank_, task->label, false);
      next_note_ = Clock::now() + kNotedWait;
    } catch (const std::exception& error) {
      fail(*task, error.what());
    }
    active.push_back(std::move(task));
  }
}

// Polls every task once and removes finished tasks from `active`. Returns whether any request was completed.
bool MpiProgress::advance(Tasks& active) {
  bool progressed = false;
  for (std::size_t i = 0; i < active.size() && !is_over(); ++i) {
    try {
      progressed = active[i]->test() > 0 || progressed;
      if (!active[i]->is_done()) continue;
      if (active[i]->finish) active[i]->finish();
      const std::unique_ptr<Task> task = std::move(active[i]);
      task->done.complete();
      progressed = true;
    } catch (const std::exception& error) {
      fail(*active[i], error.what());
    }
  }
  std::erase(active, nullptr);
  return progressed;
}

void MpiProgress::check_limits(const Tasks& active) {
  std::set<MpiContext> cancelled;
  {
    std::lock_guard lock(mutex_);
    cancelled = cancelled_;
  }
  for (const auto& task : active) {
    if (Clock::now() >= task->deadline)
      fail(*task, fmt::format("time limit of {} ms passed: {}", task->timeout.count(), task->missing()));
    else if (cancelled.contains(task->context))
      fail(*task, "the rank is ending with another error");
  }
}

void MpiProgress::note_waits(const Tasks& active) {
  if (active.empty() && std::exchange(is_wait_noted_, false)) rendezvous::note_operation(rank_, last_label_, false);
  if (active.empty() || Clock::now() < next_note_) return;
  const auto first = std::ranges::min_element(active, {}, [](const auto& task) { return task->deadline; });
  last_label_ = (*first)->label;
  rendezvous::note_operation(rank_, last_label_, true, (*first)->missing_ranks());
  is_wait_noted_ = true;
  next_note_ = Clock::now() + kNotedWait;
}

// Called after a failure, before callers free the buffers of their operations. Waits until MPI has finished with these
// buffers and with those of received statuses.
void MpiProgress::release(Tasks& active) {
  std::shared_ptr<MpiBoardMessages> board_messages;
  {
    std::lock_guard lock(mutex_);
    board_messages = board_messages_;
  }
  const auto limit = Clock::now() + kReleasing;
  for (const auto& task : active) task->cancel_receives();
  try {
    for (bool held = true; held && Clock::now() < limit;) {
      held = board_messages != nullptr && !board_messages->finish_receives();
      for (const auto& task : active) held = !task->is_released() || held;
      if (held) std::this_thread::sleep_for(kShortestPause);
    }
  } catch (const std::exception&) {
    // MPI failed again, so it does not finish anything.
  }
}

// Called after a failure: fails all active and queued tasks.
void MpiProgress::answer_all(Tasks& active) {
  std::lock_guard lock(mutex_);
  const std::string earlier = fmt::format("an earlier operation failed: {}", failure_);
  for (auto* tasks : {&active, &queue_}) {
    for (auto& task : *tasks)
      task->done.complete(std::make_exception_ptr(Error("{}", task->error.empty() ? earlier : task->error)));
    tasks->clear();
  }
}

bool MpiProgress::poll_boards(MpiDeadline now) {
  std::shared_ptr<MpiBoardMessages> board_messages;
  MpiContext context = 0;
  {
    std::lock_guard lock(mutex_);
    if (failed_ || abandoned_) return false;
    board_messages = board_messages_;
    context = boards_context_;
  }
  if (board_messages == nullptr || now < next_poll_) return false;
  try {
    if (board_messages->poll(contexts_[static_cast<std::size_t>(context)])) return true;
    next_poll_ = now + kBoardPause;
  } catch (const std::exception& error) {
    fail("statuses", error.what());
  }
  return false;
}

bool MpiProgress::is_finished(const Tasks& active) {
  std::lock_guard lock(mutex_);
  const bool over = failed_ || abandoned_;
  return closing_ && active.empty() && queue_.empty() &&
         (over || board_messages_ == nullptr || board_messages_->is_idle());
}

void MpiProgress::serve() {
  Tasks active;
  auto last = Clock::now();  // time at which a task was last started or a request completed
  microseconds pause{0};
  bool released = false;
  for (;;) {
    Tasks fresh = take(pause, active.empty());
    if (fresh.empty() && is_finished(active)) break;
    bool progressed = !fresh.empty();
    start(std::move(fresh), active);
    progressed = advance(active) || progressed;
    progressed = poll_boards(Clock::now()) || progressed;
    if (!is_over()) note_waits(active);
    check_limits(active);
    if (is_over()) {
      if (!std::exchange(released, true)) release(active);
      answer_all(active);
    }
    if (progressed) last = Clock::now();
    pause = progressed ? microseconds{0} : pause_after(Clock::now() - last);
  }
  if (!is_over()) finalise();
}

}  // namespace tessera::comm
