// The schedule of one kind of step, as data: when each weight is gathered, which bytes it occupies, and when its
// gradients are reduced. plan.h writes a schedule, check.h proves it, simulate.h predicts its time, and Runtime
// executes it.
//
// Positions. The trace of a step has a body (all events up to the last event of the last microbatch), followed by the
// optimizer's events. For each bucket, these are the all-reduce of its amaxes if a number format needs one, and the
// bucket's publish events. A schedule begins after the body of the previous step, because no gathered weight is valid
// at that point. The event at index i of the body has position i. The P optimizer events before this body belong to the
// previous step and have the positions -P .. -1. A gather at a negative position is therefore a prefetch: it runs while
// the previous step's optimizer still updates weights. Position -1 is also the beginning of a step. "At position p"
// means directly after the event at p. Segment p is the time between the events p - 1 and p.
//
// Lanes. The lane compute runs the program, in program order. Each domain has the lanes gather, reduce and replicas; in
// a run, domains with equal groups share them. Lanes wait for each other only where the schedule requires it. gather
// runs the gathers in the order of `residencies`. reduce runs exchanges and sums in the order of `reductions`; on GPUs
// the sums have a separate lane. replicas runs sums over replicas in the order of `reductions`, then exchanges of new
// weights. If the last microbatch does not reduce a unit, the unit's sum over replicas runs at the end of the body. At
// each position the host first records the fence of compute. The host then issues reductions, then gathers, and makes
// compute wait for the reductions that finish at this position.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/schedule/events.h"
#include "tessera/schedule/way.h"

namespace tessera::schedule {

// The bytes of a parameter, as input for the planner. Each number is the maximum over the ranks that execute the
// schedule, so these ranks plan with equal values.
struct ParameterSize {
  std::string name;
  int domain = 0;  // the domain that shards the parameter (shard/domain.h); all members of a unit have the same domain
  bool is_vector = false;  // for example the weight of a norm or a bias
  // Bytes of the gathered weight; 0: the weight is not gathered, because the rank can read its shard directly.
  std::int64_t gathered = 0;
  std::int64_t unpacked = 0;  // bytes of the weight after unpacking; 0: the weight is not unpacked
  // Bytes of the weight's columnwise copy, which backward passes read; 0: they read no copy. A weight with a copy is
  // not unpacked.
  std::int64_t columnwise = 0;
  // Bytes of the gradient's staging; 0: the parameter is frozen, or its gradient is written directly to main_grad.
  std::int64_t staging = 0;
  std::int64_t scratch = 0;  // bytes of scratch for the exchange of the gradient, in use until the gradient is summed
  Way gather;                // way of the weight
  Way reduce;                // way of one microbatch's gradient
  Way replicas;              // way of the sum over replicas, once a step
  Way publish;               // way of the weights that other replicas have updated

  // Whether the parameter may share a unit with other parameters. Its gather must have a single hop.
  bool joins() const { return !has_hop(gather, mesh::Transfer::gather_compute); }
};

// Parameters that travel together in one collective. The parameters of a unit are small. They are adjacent in the order
// of first use, or they are vectors whose gradients are reduced together.
using Unit = std::vector<ParameterId>;

// The interval in which the weights of a unit occupy bytes of the gather arena. A weight that is unpacked has two
// ranges of bytes. The gathered (packed) bytes are in use from the issue of the gather until compute unpacks them,
// directly before the event `wait`. The unpacked bytes are in use from the unpacking to the last release event. If the
// weight is not gathered, compute unpacks the stored shard, and there are no gathered bytes. A weight that is not
// unpacked has one range, in use from the issue of the gather to the last release event.
struct Residency {
  int unit = 0;   // index into gather_units
  int issue = 0;  // position where the gather is enqueued
  int free = 0;   // position (<= issue) that compute must pass before the gather runs. At this position, all earlier
                  // tenants of the bytes (of any domain) are released or unpacked, and all members are published
  int wait = 0;   // index of the first consume event; directly before it, compute waits for the gather and unpacks
  int last = 0;   // index of the last release event
  std::int64_t offset = 0;           // offset of the gathered weights in the gather arena, bytes
  std::int64_t unpacked_offset = 0;  // offset of the unpacked weights in the gather arena, bytes

  bool operator==(const Residency&) const = default;
};

// The columnwise copies of the weights of a unit: compute makes them from the gathered weights, or from the shards of
// weights that are not gathered. A copy of a gathered unit lies within one residency.
struct ColumnwiseCopy {
  int unit = 0;             // index into gather_units
  int make = 0;             // index of a consume event of a backward pass; compute makes the copies directly before it
  int last = 0;             // index of the last release event of a backward pass that reads the copies
  std::int64_t offset = 0;  // offset in the gather arena, bytes

  bool operator==(const ColumnwiseCopy&) const = default;
};

// The reduction of a unit's gradients of one microbatch from staging to main_grad.
struct Reduction {
  int unit = 0;  // index into reduce_units
  int microbatch = 0;
  int first = 0;  // index of the first produce event; compute writes the staging from segment `first` on
  // Index of the last produce event; the exchange is enqueued at this event and waits until compute reaches it.
  int issue = 0;
  int finish = 0;         // position (>= issue) at which compute waits for the sum; the staging is then free
  bool replicas = false;  // whether this is the unit's last reduction of the step; the sum over replicas follows it on
                          // the lane replicas
  std::int64_t offset = 0;         // offset in the reduce arena, bytes
  std::int64_t scratch = 0;        // offset in the scratch, bytes
  std::vector<int> scratch_waits;  // earlier reductions of this step, of any domain, that use the same bytes; the
                                   // exchange waits for their sums

  bool operator==(const Reduction&) const = default;
};

struct Schedule {
  StepKind kind = StepKind::train;
  int microbatches = 0;
  int events = 0;                // number of events in the trace
  int body = 0;                  // number of events in the body
  std::uint64_t trace_hash = 0;  // hash_trace of the trace for which the schedule was planned
  std::vector<Unit> gather_units, reduce_units;
  std::vector<int> gather_domains, reduce_domains;  // by unit: the domain of its members
  // By unit: bytes of gathered weights, unpacked weights, columnwise copies, staging and scratch. unpacked_bytes is 0
  // for a unit that is not unpacked, and columnwise_bytes for a unit without copies. Either all members of a unit are
  // unpacked, or no member is. The same holds for copies. A unit whose members stay in place has only copies.
  std::vector<std::int64_t> gather_bytes, unpacked_bytes, columnwise_bytes, reduce_bytes, scratch_bytes;
  std::vector<Residency> residencies;  // in the order of issue
  std::vector<ColumnwiseCopy> copies;  // in the order of `make`
  std::vector<Reduction> reductions;   // in the order of issue
  std::int64_t gather_arena = 0;       // bytes of the gather arena: the largest end of a residency
  std::int64_t reduce_arena = 0;       // bytes of the reduce arena: the largest end of a reduction's staging
  std::int64_t scratch = 0;            // bytes of the scratch: the maximum of scratch_bytes

  bool unpacks(int unit) const { return unpacked_bytes[static_cast<std::size_t>(unit)] > 0; }
  bool copies_columnwise(int unit) const { return columnwise_bytes[static_cast<std::size_t>(unit)] > 0; }
  // Returns whether the members of the unit stay in place: they are not gathered and not unpacked.
  bool stays_in_place(int unit) const { return gather_bytes[static_cast<std::size_t>(unit)] == 0 && !unpacks(unit); }
  int optimizer_events() const { return events - body; }
  int position_of(int index) const { return index < body ? index : index - events; }
  bool operator==(const Schedule&) const = default;
};

// Return hashes of the parts of a schedule that must be equal on all ranks of a communicator: the order of gathers or
// reductions, their members and their microbatches. Offsets and positions are not included.
std::uint64_t gather_hash(const Schedule& schedule);
std::uint64_t reduce_hash(const Schedule& schedule);

}  // namespace tessera::schedule
