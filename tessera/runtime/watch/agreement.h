// Checks that all ranks of a class run the same program. Each rank posts its events on a board that the other ranks can
// read. Ranks compare events at the end of every step, and when a rank waits too long. On a GPU, a step is compared
// while the next step is enqueued, and a waiting rank may be a step ahead of the other ranks. Therefore records of the
// last steps are kept.
#pragma once
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/runtime/parameter_table.h"
#include "tessera/runtime/step_record.h"
#include "tessera/schedule/check/together.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. Before it throws because of a difference, it cancels all groups of the rank
// and drains its lanes, so the memory of every collective may be freed. The owner drains the lanes before it destroys
// an agreement with unread comparisons.
class Agreement {
 public:
  // history: of this rank. parameters: gives the names in messages. All arguments outlive the agreement.
  Agreement(shard::ParallelGroups& parallel, const StepHistory& history, const ParameterTable& parameters)
      : parallel_(parallel), history_(history), parameters_(parameters) {}

  void post() const;  // posts the events of this rank so far

  // Blocks the host until the fence is done; then compute waits for it too. Throws the error of the fence. Also throws
  // Error, which names the first different event, if the fence is not done after a second and another rank has recorded
  // other events.
  void wait(const base::Fence& fence);
  // As wait(), but compute does not wait. poll_after: the time after which the records of the other ranks are read.
  void wait_on_host(const base::Fence& fence, std::chrono::milliseconds poll_after = kPollInterval);
  // Compares `number` between the ranks of the group; collective and blocking. Throws Error with the first different
  // event, or else with `what`, if the numbers differ.
  void compare(comm::Communicator& group, std::uint64_t number, const std::string& what);
  // Returns the calls of each class in a cycle of steps, by class. own: the calls of this rank's class. Collective over
  // the world and blocking.
  std::vector<schedule::CallOrder> orders_of_classes(const schedule::CallOrder& own);
  // Begins to compare the events of the current step so far; collective over the class. Blocks only for the oldest of
  // kKeptSteps comparisons, and throws its error.
  void compare_later();
  // Blocks until the comparisons of the steps up to number `step` are known. Throws the errors of compare.
  void finish_until(std::int64_t step);

 private:
  static constexpr std::chrono::milliseconds kPollInterval{1000};

  // An exchange of numbers in flight. A comparison must not move in memory.
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
  // Throws if a difference is known; then nothing is in flight.
  void poll();
  // Returns a text with the first event in which a rank differs from this one, or an empty text without a known
  // difference.
  std::string difference() const;

  shard::ParallelGroups& parallel_;
  const StepHistory& history_;
  const ParameterTable& parameters_;
  std::deque<Comparison> open_;  // the oldest first
};

}  // namespace tessera::runtime
