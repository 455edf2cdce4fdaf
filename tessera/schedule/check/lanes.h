// Replays the lanes of one rank in the host's order, and checks every access to shared bytes against the earlier
// accesses. check.h explains the method.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/schedule/check/faults.h"
#include "tessera/schedule/check/memory.h"

namespace tessera::schedule {

// Iterates over items in the order of the events at which they are due.
class ItemsByEvent {
 public:
  ItemsByEvent() = default;
  // `due_at[item]` is the event at which the item is due. Items of one event keep their order.
  explicit ItemsByEvent(const std::vector<int>& due_at);

  void restart() { next_ = 0; }
  // Returns the next item that is due at or before `event`, or -1 if no item is due.
  int next(int event);

 private:
  std::vector<std::pair<int, int>> items_;  // event, item
  std::size_t next_ = 0;
};

class CheckedLanes {
 public:
  // The schedule must have passed the checks of shape.h. `taken` is the result of match_produces. All arguments must
  // outlive the object.
  CheckedLanes(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
               const std::vector<int>& taken, CheckFaults& faults);

  // Replays one step. If `publishes` is true, also replays the optimizer's events and the prefetches at these events.
  // If `publishes` is false, the next step issues its prefetches at its beginning.
  void run_step(bool publishes);

 private:
  struct Gathered {
    int tenant = kNoTenant;      // tenant of the gathered bytes
    std::int64_t publishes = 0;  // number of publish events of all parameters before the gather was enqueued
    VectorClock done{};
  };

  // A columnwise copy in the arena. Before the first step, the arena holds the copies of an earlier step, after which
  // all weights were published.
  struct Made {
    int copy = -1;                // index into the schedule's copies; -1: the unit has no copies
    int step = -1;                // step in which the copy was made
    std::int64_t publishes = -1;  // number of publish events of all parameters before the copy was made
  };

  void begin_step();
  void run_event(int index);
  void after_event(int index);
  void end_body();

  void wait_for(int residency, int index);
  void unpack(int residency, int index);
  void end_bytes(int residency, bool packed);
  void make_copy(int copy, int index);
  void end_copy(int copy);
  void read_copy(int index);
  void consume(int index);
  void release(int index);
  void produce(int index);
  void publish(int index);
  void issue_gathers(int position);
  void issue_reduction(int reduction);
  void read_staging(int reduction, const ClockedAccess& access);
  void take_scratch(int reduction, const ClockedAccess& access);
  void read_scratch(int reduction, const ClockedAccess& access);
  void finish(int reduction);

  ClockedAccess on(CheckedLane lane);
  const VectorClock& fence(int position) const;
  void read_weights(int residency, int index);
  void read_shard(ParameterId id, int residency, const ClockedAccess& access);
  // arrived() is the range of a residency's bytes to which the gather writes. used() is the range from which compute
  // reads. Without unpacking the two ranges are equal.
  CheckedArena::Range arrived(int residency) const;
  CheckedArena::Range used(int residency) const;
  bool unpacks(int residency) const;
  CheckedArena::Range range_of(const ColumnwiseCopy& copy) const {
    return {copy.offset, copy.offset + schedule_.columnwise_bytes[static_cast<std::size_t>(copy.unit)]};
  }
  // Return the tenant numbers in the gather arena. Each residency of a step has two tenants: an even number for the
  // gathered bytes, and an odd number for the unpacked bytes. The columnwise copies of the step have the next numbers.
  int gather_tenant_of(int residency, bool unpacked) const {
    return tenant_of(2 * residency + (unpacked ? 1 : 0), gather_tenants());
  }
  int copy_tenant_of(int copy) const {
    return tenant_of(2 * static_cast<int>(schedule_.residencies.size()) + copy, gather_tenants());
  }
  std::size_t gather_tenants() const { return 2 * schedule_.residencies.size() + schedule_.copies.size(); }
  int tenant_of(int item, std::size_t items) const { return step_ * static_cast<int>(items) + item; }
  std::string gather_tenant(const CheckedArena::Conflict& conflict) const;
  std::string reduce_tenant(const CheckedArena::Conflict& conflict) const;

  const Trace& trace_;
  const std::vector<ParameterSize>& sizes_;
  const Schedule& schedule_;
  const std::vector<int>& taken_;
  CheckFaults& faults_;

  int step_ = 0;  // number of the step to which newly enqueued gathers and reductions belong
  std::vector<VectorClock> clocks_{kCheckedLanes};
  VectorClock step_begin_{};
  // Whether this step's prefetches were issued at the optimizer's events of the previous step.
  bool prefetched_ = false;
  std::vector<VectorClock> fences_;  // by event: the clock of compute when it last passed the event
  std::size_t next_gather_ = 0;

  ItemsByEvent waits_, unpacked_, ends_, copies_, copy_ends_, stagings_, reductions_, finishes_;
  CheckedArena gather_arena_, reduce_arena_, scratch_;
  std::vector<AccessHistory> shards_, main_grads_;  // shards_ by parameter, main_grads_ by reduce unit
  std::vector<int> shard_readers_;                  // by parameter: the last residency that read its shard
  std::vector<int> gather_unit_;                    // by parameter

  std::vector<Gathered> gathered_;  // by residency: the newest gather
  std::vector<int> current_;        // by gather unit: the last residency of this step that compute waited for, or -1
  std::vector<Made> made_;          // by gather unit: the newest columnwise copy
  // By parameter. users_: number of consume events without a release event. held_: the residency that they use.
  std::vector<int> users_, held_;
  std::vector<std::int64_t> published_;  // by parameter: value of publishes_ at its last publish event
  std::int64_t publishes_ = 0;           // number of publish events of all parameters
  // By reduction. summed_: the clock after which main_grad contains the newest sum. finished_: the clock after which
  // main_grad contains the sum over replicas.
  std::vector<VectorClock> summed_, finished_;
};

}  // namespace tessera::schedule
