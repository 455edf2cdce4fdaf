// That all ranks of a class run the same program: what each did is posted where the others can read it, and compared
// when a rank waits too long and at the end of every step. Where compute is a queue of a GPU, what a step did is
// compared while the next one is enqueued, and a rank that waits may be a step ahead of the others: the last steps are
// remembered.
#pragma once
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/runtime/parameter_entry.h"
#include "tessera/runtime/step_record.h"
#include "tessera/schedule/check/together.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// Steps that a rank remembers and posts, the one under way included.
inline constexpr std::size_t kKeptSteps = 4;

// One rank's record of its last steps. One thread. When it throws because of a difference, all groups of the rank have
// been given up and its lanes are drained, so the memory of every collective may go. Of comparisons begun and not
// looked at the owner drains the lanes before this object goes.
class Agreement {
 public:
  explicit Agreement(shard::ParallelGroups& parallel) : parallel_(parallel), steps_(1) { steps_.reserve(kKeptSteps); }

  void begin_step();
  void add(const schedule::Event& event) { steps_.back().add(event); }
  std::int64_t step() const { return steps_.back().number(); }            // the last begun, from 1
  const schedule::Trace& trace() const { return steps_.back().trace(); }  // of it
  std::uint64_t hash() const { return steps_.back().hash(); }
  void post();  // where this rank is

  // Blocks the host until the fence is done; then compute waits for it too. Errors: Error with the first differing
  // event when a second passed and another rank did other things; whatever the fence carries.
  void wait(const base::Fence& fence, const ParameterEntries& entries);
  // The same for the host alone. patience: after so long others are looked at.
  void wait_on_host(const base::Fence& fence, const ParameterEntries& entries,
                    std::chrono::milliseconds patience = kPatience);
  // Collective over `group`, blocking: every rank brings `number`. Errors: Error with the first differing event, or
  // naming `what`, when one brings another.
  void compare(comm::Communicator& group, std::uint64_t number, const std::string& what,
               const ParameterEntries& entries);
  // Collective over the world, blocking: what the ranks of each class call in a cycle of steps, by class. `own`: what
  // this rank does, the same for all of its class.
  std::vector<schedule::CallOrder> orders_of_classes(const schedule::CallOrder& own, const ParameterEntries& entries);
  // Collective over the class: begins to compare what ranks did in the step so far. Blocks only for the oldest of
  // kKeptSteps comparisons. Errors: that one's, as settle.
  void compare_later(const ParameterEntries& entries);
  // Blocks until the comparisons begun in the steps up to number `step` are known. Errors: as compare.
  void settle(std::int64_t step, const ParameterEntries& entries);

 private:
  static constexpr std::chrono::milliseconds kPatience{1000};

  // Ranks' numbers, on their way. Stays where it is.
  struct Comparison {
    std::int64_t step = 0;
    comm::Communicator* group = nullptr;
    std::string what;
    std::uint64_t own = 0;
    std::vector<std::uint64_t> all;
    base::Fence done;
  };
  void begin(Comparison& comparison) const;
  void finish(const Comparison& comparison, const ParameterEntries& entries);
  void look_until(const base::Fence& fence, const ParameterEntries& entries, std::chrono::milliseconds patience);
  // Throws when a difference is known, with nothing under way.
  void look(const ParameterEntries& entries);
  // The first event in which some rank differs from this one; empty while none is known.
  std::string difference(const ParameterEntries& entries);

  shard::ParallelGroups& parallel_;
  std::vector<StepRecord> steps_;  // the oldest first
  std::deque<Comparison> open_;    // the oldest first
};

}  // namespace tessera::runtime
