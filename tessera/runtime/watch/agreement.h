// Checks that all ranks of a class record equal events. Each rank posts its events on a board that the other ranks can
// read. Ranks compare their events before each gather and each reduction on demand, at the end of every step, and when
// a rank waits too long. On a GPU, a step is compared while the next step is enqueued, and a waiting rank may be a step
// ahead of the other ranks. Therefore each rank keeps the records of its last steps.
#pragma once
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/runtime/parameter_table.h"
#include "tessera/runtime/record/step_record.h"
#include "tessera/schedule/check/together.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. Before it throws because of a different event, the agreement cancels all
// communicators of the rank and drains its lanes. The memory of every collective may then be freed. The owner must
// drain the lanes before it destroys an agreement with unread comparisons.
class Agreement {
 public:
  // `history` belongs to this rank. `parameters` gives the names in messages. All arguments outlive the agreement.
  Agreement(shard::ParallelGroups& parallel, const StepHistory& history, const ParameterTable& parameters)
      : parallel_(parallel), history_(history), parameters_(parameters) {}

  void post() const;  // posts the events of this rank so far

  // Blocks the host until the fence is done, and makes compute wait for the fence. Throws the error of the fence. If
  // the fence is not done after a second and another rank has recorded other events, throws an Error that names the
  // first different event.
  void wait(const base::Fence& fence);
  // Like wait(), but compute does not wait. The records of the other ranks are read after the time `poll_after`.
  void wait_on_host(const base::Fence& fence, std::chrono::milliseconds poll_after = kPollInterval);
  // Compares `number` between the ranks of the group. Collective and blocking. If the numbers differ, throws an Error
  // with the first different event. If no event differs, the Error contains `what`.
  void compare(comm::Communicator& group, std::uint64_t number, const std::string& what);
  // Returns the collectives that the ranks of each class call in one step (together.h), by class. `own` is the call
  // order of this rank's class. Collective over the world and blocking.
  std::vector<schedule::CallOrder> orders_of_classes(const schedule::CallOrder& own);
  // Starts to compare the events of the current step so far between the ranks of the class. Collective over the class.
  // If kKeptSteps comparisons are in flight, blocks until the oldest is complete and throws its error.
  void compare_later();
  // Blocks until the comparisons of all steps up to number `step` are complete. Throws the errors of compare.
  void finish_until(std::int64_t step);

 private:
  static constexpr std::chrono::milliseconds kPollInterval{1000};

  // A comparison in flight. The object must not move in memory, because the collective uses its address.
  struct Comparison {
    std::int64_t step = 0;
    comm::Communicator* group = nullptr;
    std::string what;
    std::uint64_t own = 0;
    std::vector<std::uint64_t> all;
    base::Fence done;
  };
  void begin(Comparison& comparison) const;
  void finish(const Comparison& comparison);
  void poll_until(const base::Fence& fence, std::chrono::milliseconds poll_after);
  // Reads the records of the other ranks. If a rank has different events, cancels and drains all work in flight and
  // throws Error.
  void poll();
  // Returns a text with the first event in which another rank differs from this rank. Returns an empty text if the
  // posted records do not show a difference.
  std::string difference() const;

  shard::ParallelGroups& parallel_;
  const StepHistory& history_;
  const ParameterTable& parameters_;
  std::deque<Comparison> open_;  // the oldest first
};

}  // namespace tessera::runtime
