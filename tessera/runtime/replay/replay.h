// Executes steps that follow a schedule. At each event, Replay issues the transfers of the schedule and makes compute
// wait for the transfers that it needs. Transfers use arenas with fixed addresses.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tessera/runtime/replay/columnwise_copies.h"
#include "tessera/runtime/step_context.h"
#include "tessera/schedule/schedule.h"

namespace tessera::runtime {

// Executes one schedule for any number of steps. Used by one thread. After drain() no pending work refers to this
// object.
class Replay {
 public:
  // `trace` is the trace of the recorded step. `step` outlives the replay.
  Replay(schedule::Trace trace, schedule::Schedule schedule, StepContext& step);

  const schedule::Trace& trace() const { return trace_; }
  const schedule::Schedule& schedule() const { return schedule_; }

  // Issues the prefetches of this step that are not in flight or have old versions. Returns true if all prefetches were
  // in flight with the current versions.
  bool begin_step();
  bool is_next(const schedule::Event& event) const {
    return next_ < schedule_.events && is_same(at(trace_, next_), event);
  }
  bool ends_microbatch(int microbatch) const;  // whether all events of this microbatch have been recorded
  bool is_at_end_of_body() const { return next_ == schedule_.body; }
  int next() const { return next_; }
  // Returns the next event as a text for messages.
  std::string next_event(const std::vector<std::string>& names) const {
    return next_ < schedule_.events ? to_string(at(trace_, next_), names) : "the end of the step";
  }

  // arrive and staging are called for the next event. The caller then calls passed().
  void arrive(ParameterEntry& entry, schedule::ParameterId id);  // before a consume event: makes the weight readable
  // After arrive, if the event is one of a backward pass that reads the weight's columnwise copy.
  void arrive_columnwise(ParameterEntry& entry, schedule::ParameterId id);
  std::byte* staging(schedule::ParameterId id);  // before a produce event: the address of the gradient's staging
  void passed();  // called when the event is recorded; issues the transfers that the schedule has at this event

  // Issues the remaining sums over replicas and makes compute wait for all sums. main_grad is then complete for later
  // work of compute.
  void finish();
  // Called after begin_step, if a graph executes the whole step including publish events. Only updates the version
  // numbers of the weights as the step would, and compares the versions at each consume event.
  void repeat();
  // Called after a graph of the whole step was launched. `end` is the fence of the launch, which becomes the fence of
  // all publish events and transfers of the graph. Issues the prefetches for the next step, which the graph does not
  // contain. Each prefetch waits for the point of the graph at which it may begin.
  void launched(const base::Fence& end);
  // Makes compute wait for all transfers in flight. Weights and stagings that are in use stay valid, because later
  // gathers wait for compute.
  void drain();

 private:
  struct Actions {
    bool fence = false;
    std::vector<std::pair<std::int64_t, std::int64_t>> poison;  // pairs of offset in the gather arena and bytes
    std::vector<int> gathers, reductions, finishes;
  };
  struct Stay {  // state of a residency in this step
    base::Fence arrived;
    // Only for prefetches. A graph of the next step waits for `arrival`. A graph of this step signals `beginning`.
    base::Signal arrival, beginning;
    base::Fence may_begin;  // the point of the graph after which the gather may begin
    bool issued = false, awaited = false;
    std::vector<std::int64_t> versions;  // versions of the unit's members when the gather was issued
  };
  struct Member {
    std::int64_t offset = 0, unpacked = 0;  // offsets in the gathered bytes and in the unpacked bytes of the unit
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
  ParameterEntry& entry(schedule::ParameterId id) { return *at(step_.entries, id); }
  void index_events();
  void index_poison(const schedule::Residency& residency);
  void place_members();
  bool is_current(const Stay& stay, const schedule::Residency& residency);
  // Returns the residency of the next event, which is a consume event. Throws Error if its weights were not gathered,
  // or if their version is not that of the stored weights.
  int residency_of_next(const ParameterEntry& entry);
  void note_versions(int index);  // stores the versions of a residency's members when its gather is issued
  void clear_issued();
  // Returns whether the residency's gather is a prefetch.
  bool is_ahead(int index) const { return at(schedule_.residencies, index).issue < 0; }
  void unpack(const schedule::Residency& residency);
  void issue_gather(int index);
  base::Lane& gather_lane(int index);
  void start_gather(int index, const base::Fence& free);
  void note_arrival(base::Lane& lane, Stay& stay);
  void issue_reduction(int index);
  void issue_replicas(int index);
  // Makes compute wait for the fence of a residency or a reduction.
  void wait(const base::Fence& fence, mesh::Transfer transfer, int index);
  void delay(base::Lane& lane);

  schedule::Trace trace_;
  schedule::Schedule schedule_;
  StepContext& step_;
  std::mt19937_64 random_;

  ColumnwiseCopies columnwise_;
  std::vector<Actions> actions_;  // by slot(position)
  // By event: the residency of a consume event, the reduction of a produce event; -1 for other events.
  std::vector<int> residency_of_, reduction_of_;
  std::vector<Member> gathered_, reduced_;             // by parameter
  std::vector<base::Fence> passed_;                    // by slot(position): done when compute last passed the position
  std::vector<Stay> stays_;                            // by residency
  std::vector<base::Fence> summed_;                    // by reduction
  std::vector<std::pair<int, base::Fence>> replicas_;  // by reduction: sums over replicas in flight
  int next_ = 0;                                       // event
};

}  // namespace tessera::runtime
