// A step that follows its schedule: the actions around every event, in static arenas.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tessera/runtime/parameter_entry.h"
#include "tessera/runtime/statistics.h"
#include "tessera/runtime/timeline.h"
#include "tessera/runtime/waits.h"
#include "tessera/schedule/schedule.h"

namespace tessera::runtime {

// The memory of all schedules of a runtime: they take turns. Addresses last as long as no schedule needs more.
struct Arenas {
  base::Buffer gather, reduce, scratch;
  // What schedules have really used of them, bytes.
  std::int64_t gather_peak = 0, reduce_peak = 0;

  // Collective over the groups of gathers and reductions; nothing may be under way. With `pushes` the groups share the
  // memory that they receive into. Returns why some peers cannot write to it themselves (Communicator::share).
  std::string grow(const schedule::Schedule& schedule, shard::ParallelGroups& parallel, bool pushes);
  // Before the memory goes: no peer writes to it any more. Collective.
  static void withdraw(shard::ParallelGroups& parallel);
};

struct ReplayOptions {
  bool poison = false;           // buffers are filled with NaN at the end of their intervals
  std::uint64_t delay_seed = 0;  // not 0: gathers and reductions are delayed by random times
  double longest_delay = 0.003;  // seconds
};

// One schedule carried out, step after step. One thread; nothing refers to it once drain() has returned.
class Replay {
 public:
  Replay(schedule::Trace trace, schedule::Schedule schedule, ParameterEntries& entries, shard::ParallelGroups& parallel,
         Arenas& arenas, Waits& waits, StepStatistics& statistics, Timeline& timeline, const ReplayOptions& options);

  const schedule::Trace& trace() const { return trace_; }
  const schedule::Schedule& schedule() const { return schedule_; }

  // Gathers for this step that are not under way yet, or of old versions, are issued now. Whether there were none.
  bool begin_step();
  bool is_next(const schedule::Event& event) const {
    return next_ < schedule_.events && is_same(at(trace_, next_), event);
  }
  bool ends_microbatch(int microbatch) const;  // nothing of it is left
  bool is_at_end_of_body() const { return next_ == schedule_.body; }
  int next() const { return next_; }
  // For messages: the event that is next, or that nothing is.
  std::string next_event(const std::vector<std::string>& names) const {
    return next_ < schedule_.events ? to_string(at(trace_, next_), names) : "the end of the step";
  }

  // Of the event next in turn; each is followed by passed().
  void arrive(ParameterEntry& entry, schedule::ParameterId id);  // a consume: sets the entry's view
  std::byte* staging(schedule::ParameterId id);                  // before a produce: where the gradient is written
  void passed();                                                 // the event has happened: what follows from it

  // Issues the sums over replicas that are left and makes compute wait for all: every gradient is then in main_grad.
  void finish();
  // The whole step, publishes included, happens by a graph. Here only the weights' version numbers are played through
  // it, and compared at each consume as ever. After begin_step.
  void repeat();
  // A graph of the whole step has been launched, and `end` is its end. Gathers for the next step are no part of it and
  // are issued now, each behind the point of the graph from which on it may begin.
  void launched(const base::Fence& end);
  // Makes compute wait for all that is under way, and forgets it. Views and stagings handed out stay usable, since what
  // is gathered later waits for compute.
  void drain();

 private:
  struct Actions {
    bool fence = false;
    std::vector<std::pair<std::int64_t, std::int64_t>> poison;  // offset in the gather arena and bytes
    std::vector<int> gathers, reductions, finishes;
  };
  struct Stay {  // of a residency
    base::Fence arrived;
    // Of gathers for the next step, which a graph of that step waits for and a graph of this step lets begin.
    base::Signal arrival, beginning;
    base::Fence may_begin;  // in the graph
    bool issued = false, awaited = false;
    std::vector<std::int64_t> versions;  // of the members, when it was issued
  };
  struct Member {
    std::int64_t offset = 0, unpacked = 0;  // in its unit's bytes, and in those of the unpacked unit
    int unit = -1;
  };

  template <typename T>
  static const T& at(const std::vector<T>& values, int index) {
    return values[static_cast<std::size_t>(index)];
  }
  template <typename T>
  static T& at(std::vector<T>& values, int index) {
    return values[static_cast<std::size_t>(index)];
  }
  int slot(int position) const { return position < 0 ? position + schedule_.events + 1 : position; }
  ParameterEntry& entry(schedule::ParameterId id) { return *at(entries_, id); }
  void index_events();
  void index_poison(const schedule::Residency& residency);
  void place_members();
  bool is_current(const Stay& stay, const schedule::Residency& residency);
  // Of the consume that is next. Errors: its weights are not there, or of another version than the stored ones.
  int residency_of_next(const ParameterEntry& entry);
  void note_versions(int index);  // of a residency that is issued now
  void forget_issued();
  bool is_ahead(int index) const { return at(schedule_.residencies, index).issue < 0; }  // for the next step
  void unpack(const schedule::Residency& residency);
  void issue_gather(int index);
  base::Lane& gather_lane(int index);
  void start_gather(int index, const base::Fence& free);
  void note_arrival(base::Lane& lane, Stay& stay);
  void issue_reduction(int index);
  void issue_replicas(int index);
  // For what a residency or a reduction does.
  void wait(const base::Fence& fence, schedule::Activity activity, int index);
  void delay(base::Lane& lane);

  schedule::Trace trace_;
  schedule::Schedule schedule_;
  ParameterEntries& entries_;
  shard::ParallelGroups& parallel_;
  Arenas& arenas_;
  Waits& waits_;
  StepStatistics& statistics_;
  Timeline& timeline_;
  ReplayOptions options_;
  std::mt19937_64 random_;

  std::vector<Actions> actions_;                       // by slot
  std::vector<int> residency_of_, reduction_of_;       // by event: of a consume, of a produce; -1 for others
  std::vector<Member> gathered_, reduced_;             // by parameter
  std::vector<base::Fence> passed_;                    // by slot: compute was there last
  std::vector<Stay> stays_;                            // by residency
  std::vector<base::Fence> summed_;                    // by reduction
  std::vector<std::pair<int, base::Fence>> replicas_;  // by reduction: sums over replicas under way
  int next_ = 0;                                       // event
};

}  // namespace tessera::runtime
