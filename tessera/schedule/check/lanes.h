// The lanes of one rank played through in the host's order, every access to shared bytes checked against the accesses
// before it. The argument is in check.h.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/schedule/check/faults.h"
#include "tessera/schedule/check/memory.h"

namespace tessera::schedule {

// Indices of items in the order of the event at which they are due, handed out as the step goes through its events.
class Agenda {
 public:
  Agenda() = default;
  // due_at[item]: the event; items of one event keep their order.
  explicit Agenda(const std::vector<int>& due_at);

  void restart() { next_ = 0; }
  // The next item due at or before `event`, -1 when there is none.
  int next(int event);

 private:
  std::vector<std::pair<int, int>> items_;  // event, item
  std::size_t next_ = 0;
};

class CheckedLanes {
 public:
  // The schedule's shape is right; taken[event]: the reduction of what is produced there. All outlive the object.
  CheckedLanes(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
               const std::vector<int>& taken, CheckFaults& faults);

  // One step, and the optimizer's events after it when `publishes`; prefetches are issued with those, or at the
  // beginning of the step where they were not.
  void run_step(bool publishes);

 private:
  struct Gathered {
    int tenant = kNoTenant;      // of what arrives
    std::int64_t publishes = 0;  // of all parameters, before the gather was enqueued
    VectorClock done{};
  };

  void begin_step();
  void run_event(int index);
  void after_event(int index);
  void end_body();

  void wait_for(int residency, int index);
  void unpack(int residency, int index);
  void end_bytes(int residency, bool packed);
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
  // The bytes of a residency as they arrive, and as they are used: the same ones where nothing is unpacked.
  CheckedArena::Range arrived(int residency) const;
  CheckedArena::Range used(int residency) const;
  bool unpacks(int residency) const;
  // Two for each residency of a step: the even one for what arrives, and for what is used where that is the same.
  int gather_tenant_of(int residency, bool unpacked) const {
    return tenant_of(2 * residency + (unpacked ? 1 : 0), 2 * schedule_.residencies.size());
  }
  int tenant_of(int item, std::size_t items) const { return step_ * static_cast<int>(items) + item; }
  std::string gather_tenant(const CheckedArena::Conflict& conflict) const;
  std::string reduce_tenant(const CheckedArena::Conflict& conflict) const;

  const Trace& trace_;
  const std::vector<ParameterSize>& sizes_;
  const Schedule& schedule_;
  const std::vector<int>& taken_;
  CheckFaults& faults_;

  int step_ = 0;  // that gathers and reductions enqueued now belong to
  std::vector<VectorClock> clocks_{kCheckedLanes};
  VectorClock step_begin_{};
  bool prefetched_ = false;          // this step's prefetches were issued under the publishes before it
  std::vector<VectorClock> fences_;  // by event: compute has passed it, in the newest step that had it
  std::size_t next_gather_ = 0;

  Agenda waits_, unpacked_, ends_, stagings_, reductions_, finishes_;
  CheckedArena gather_arena_, reduce_arena_, scratch_;
  std::vector<AccessHistory> shards_, main_grads_;  // by parameter, by reduce unit
  std::vector<int> shard_readers_;                  // by parameter: the residency that was gathered from it last
  std::vector<int> gather_unit_;                    // by parameter

  std::vector<Gathered> gathered_;       // by residency: its newest gather
  std::vector<int> current_;             // by gather unit: the residency waited for last, -1: none in this step
  std::vector<int> users_, held_;        // by parameter: consumes not released, the residency they use
  std::vector<std::int64_t> published_;  // by parameter: when it was published last, in publishes of all
  std::int64_t publishes_ = 0;           // of all parameters
  // By reduction, the newest: its sum is in main_grad; the sum over replicas is, too.
  std::vector<VectorClock> summed_, finished_;
};

}  // namespace tessera::schedule
