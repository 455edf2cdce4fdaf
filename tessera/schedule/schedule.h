// The schedule of one kind of step, as data: when each weight is gathered, which bytes it occupies, and when its
// gradients are reduced. plan.h writes a schedule, check.h proves it, simulate.h predicts its time, and Runtime
// executes it.
//
// Positions. A step's trace has a body (every event up to the last event of a microbatch), followed by the optimizer's
// events. The optimizer's events are, for each bucket, the all-reduce of its amaxes if a number format needs one, and
// the bucket's publishes. A schedule begins after the body of the previous step, because no gathered weight is valid at
// that point. The event at index i of the body has position i. The P optimizer events that precede this body have the
// positions -P .. -1. A gather issued at a negative position is therefore a prefetch: it runs while the previous step's
// optimizer still updates weights. Position -1 is also the beginning of a step. "At position p" means directly after
// the event at p. Segment p is the time between the events p - 1 and p.
//
// Lanes. compute runs the program, in program order. Each domain has its own gather, reduce and replicas lanes; they
// wait for each other only where this schedule requires it. gather runs the gathers, in the order of `residencies`.
// reduce runs exchanges and sums, in the order of `reductions`; on GPUs the sums have their own lane. replicas runs
// sums over replicas in the same order, then exchanges of new weights. Units that the last microbatch does not reduce
// are an exception: their sums over replicas run at the end of the body. At each position the host first records the
// fence of compute. The host then issues reductions, issues gathers, and makes compute wait for the reductions that
// finish at this position.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/schedule/events.h"
#include "tessera/schedule/way.h"

namespace tessera::schedule {

// The bytes of a parameter, as input for the planner. All ranks that plan together pass equal values: the maximum over
// these ranks.
struct ParameterSize {
  std::string name;
  int domain = 0;  // the domain that shards the parameter (shard/domain.h); all members of a unit have the same domain
  std::int64_t gathered = 0;  // bytes of the gathered weight; 0: the weight is not gathered, and its shard is read
  std::int64_t unpacked = 0;  // bytes of the weight after unpacking; 0: the gathered bytes are used directly
  std::int64_t staging = 0;   // bytes of one gradient until it is summed; 0: the parameter is frozen
  std::int64_t scratch = 0;   // bytes that the exchange of the gradient needs besides the staging, until the sum
  Way gather;                 // of the weight
  Way reduce;                 // of one microbatch's gradient
  Way replicas;               // of the sum over replicas, once a step
  Way publish;                // of the new weights that other replicas have updated

  // Whether the parameter may share a unit with others: its gather has a single hop.
  bool joins() const { return !has_hop(gather, Activity::gather_compute); }
};

// Parameters that travel together in one collective. The parameters of a unit are small and adjacent in the order of
// first use.
using Unit = std::vector<ParameterId>;

// The interval in which a unit's weights occupy bytes of the gather arena. A weight that is unpacked has two stages in
// the arena. Stage *arrived* is the packed bytes, from the issue of the gather to the unpacking. Compute unpacks them
// directly before the event `wait`. Stage *unpacked* lasts from there to the last release. If the weight is not
// gathered, compute unpacks the stored bytes and there is no first stage. A weight that is used without unpacking has
// one stage, from the issue to the last release.
struct Residency {
  int unit = 0;   // of gather_units
  int issue = 0;  // position where the gather is enqueued
  int free = 0;  // position (<= issue) that compute must pass before the gather runs. `free` is the latest of: the last
                 // release or the unpacking of every earlier tenant of these bytes, of any domain; the last publish of
                 // a member
  int wait = 0;  // index of the first consume; directly before it, compute waits for the gather and unpacks
  int last = 0;  // index of the last release
  std::int64_t offset = 0;           // bytes, in the gather arena: of the gathered weights
  std::int64_t unpacked_offset = 0;  // bytes, in the gather arena: of the unpacked weights

  bool operator==(const Residency&) const = default;
};

// The reduction of a unit's gradients of one microbatch from staging to main_grad.
struct Reduction {
  int unit = 0;  // of reduce_units
  int microbatch = 0;
  int first = 0;  // index of the first produce; compute writes the staging from segment `first`
  int issue = 0;  // index of the last produce, where the exchange is enqueued; the exchange waits until compute reaches
                  // this event
  int finish = 0;         // position (>= issue) where compute waits for the sum; afterwards the staging is free
  bool replicas = false;  // the unit's last reduction of the step; the sum over replicas follows, on the replicas lane
  std::int64_t offset = 0;         // bytes, in the reduce arena
  std::int64_t scratch = 0;        // bytes, in the scratch
  std::vector<int> scratch_waits;  // reductions of this step that used these bytes of the scratch before; the exchange
                                   // waits for their sums

  bool operator==(const Reduction&) const = default;
};

struct Schedule {
  StepKind kind = StepKind::train;
  int microbatches = 0;
  int events = 0;                // number of events in the trace
  int body = 0;                  // number of events up to the last event of a microbatch
  std::uint64_t trace_hash = 0;  // of the trace that the schedule is for
  std::vector<Unit> gather_units, reduce_units;
  std::vector<int> gather_domains, reduce_domains;  // by unit: the domain of its members
  // By unit: arena bytes of the gathered weights, of the unpacked weights, and of the gradients' staging; bytes of the
  // scratch. unpacked_bytes is 0 for a unit that is used without unpacking. The members of a unit are either all
  // unpacked or all used without unpacking.
  std::vector<std::int64_t> gather_bytes, unpacked_bytes, reduce_bytes, scratch_bytes;
  std::vector<Residency> residencies;  // in the order of issue
  std::vector<Reduction> reductions;   // in the order of issue
  std::int64_t gather_arena = 0;       // bytes: the largest end of a residency
  std::int64_t reduce_arena = 0;       // bytes: the largest end of a reduction
  std::int64_t scratch = 0;            // bytes of the exchanges' own buffer: the maximum over the exchanges

  bool unpacks(int unit) const { return unpacked_bytes[static_cast<std::size_t>(unit)] > 0; }
  int optimizer_events() const { return events - body; }
  int position_of(int index) const { return index < body ? index : index - events; }
  bool operator==(const Schedule&) const = default;
};

// Hashes of the parts of a schedule that must be equal on all ranks of a communicator: order, members and microbatches.
// Offsets and the positions of issues are not included.
std::uint64_t gather_hash(const Schedule& schedule);
std::uint64_t reduce_hash(const Schedule& schedule);

}  // namespace tessera::schedule
