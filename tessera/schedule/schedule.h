// The schedule of one kind of step, as data: which weights are brought together when and into which bytes, and how
// their gradients leave. Written by plan.h, proved by check.h, timed by simulate.h, carried out by Runtime.
//
// Positions. A step's trace has a body (every event up to the last of a microbatch) and then the optimizer's events:
// for each bucket the message of its amaxes, where a format needs one, and its publishes. The cycle of steps is cut
// behind the body, where no gathered weight is valid any more: the event at index i of the body has position i; the
// optimizer's events, which come before the *next* step's body, have the positions -P .. -1 (P of them). So an issue at
// a negative position is a prefetch for the next step under this step's optimizer, and position -1 is also the
// beginning of a step. "At position p" means directly after the event at p; what is written in segment p lies between
// the events p - 1 and p.
//
// Lanes. compute: the program itself, in its order. Each domain has a gather, a reduce and a replicas lane of its own,
// which wait for each other only where this schedule says so. gather: gathers, in the order of `residencies`. reduce:
// exchanges and sums, in the order of `reductions`; on GPUs the sums have a lane of their own. replicas: sums over
// replicas, in the same order, except that sums of units that the last microbatch does not reduce come at the end of
// the body; then exchanges of new weights. At each position the host does, in this order: fences of compute, reductions
// issued, gathers issued, finishes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/schedule/events.h"
#include "tessera/schedule/way.h"

namespace tessera::schedule {

// What the planner needs to know of a parameter: bytes, the same on all ranks that plan together (the greatest over
// them).
struct ParameterSize {
  std::string name;
  int domain = 0;             // what it is cut over (shard/domain.h): units hold members of one
  std::int64_t gathered = 0;  // buffer of the weight as it is gathered; 0: nothing is, the shard is read
  std::int64_t unpacked = 0;  // buffer of the weight that is unpacked from that; 0: it is used as it arrives
  std::int64_t staging = 0;   // buffer of one gradient until it is summed; 0: frozen
  std::int64_t scratch = 0;   // what its exchange needs beside the staging, until its sum is taken
  Way gather;                 // the weight
  Way reduce;                 // a microbatch's gradient
  Way replicas;               // the sum over replicas, once a step
  Way publish;                // new weights, of what other replicas have updated

  // Whether it may travel together with others: one hop.
  bool joins() const { return !has_hop(gather, Activity::gather_compute); }
};

// Parameters that travel together, one collective for all: neighbours that are small.
using Unit = std::vector<ParameterId>;

// One stay of a unit's weights in the gather arena. Weights that are unpacked have two stages there: *arrived*, the
// packed bytes from the issue of the gather to the unpacking, which is compute's work directly before the event `wait`;
// and *unpacked*, from there to the last release. Where nothing is gathered the stored bytes are unpacked, and there is
// no first stage. Weights that are used as they arrive have one stage, from the issue to the last release.
struct Residency {
  int unit = 0;   // of gather_units
  int issue = 0;  // position where the gather is enqueued
  int free = 0;   // the gather lane waits until compute has passed this position (<= issue), the latest of: the last
                  // release, or the unpacking, of every earlier tenant of these bytes, of any domain and however long
                  // ago; the newest member's publish
  int wait = 0;   // index of the consume before which compute waits for the gather, and unpacks; the first use
  int last = 0;   // index of the last release
  std::int64_t offset = 0;           // bytes, in the gather arena: of what arrives
  std::int64_t unpacked_offset = 0;  // the same of what is unpacked

  bool operator==(const Residency&) const = default;
};

// The way of a unit's gradients of one microbatch from staging to main_grad.
struct Reduction {
  int unit = 0;  // of reduce_units
  int microbatch = 0;
  int first = 0;          // index of the first produce: the staging is written from segment `first` on
  int issue = 0;          // index of the last produce: the exchange is enqueued there and waits for compute to be there
  int finish = 0;         // compute waits for the sum at this position (>= issue); the staging is free after it
  bool replicas = false;  // the unit's last of the step: the sum over replicas follows, on their lane
  std::int64_t offset = 0;         // bytes, in the reduce arena
  std::int64_t scratch = 0;        // bytes, in the scratch
  std::vector<int> scratch_waits;  // reductions of this step that had these bytes of the scratch: the exchange begins
                                   // after their sums

  bool operator==(const Reduction&) const = default;
};

struct Schedule {
  StepKind kind = StepKind::train;
  int microbatches = 0;
  int events = 0;                // of the trace
  int body = 0;                  // of these up to the last of a microbatch
  std::uint64_t trace_hash = 0;  // of the trace it is for
  std::vector<Unit> gather_units, reduce_units;
  std::vector<int> gather_domains, reduce_domains;  // by unit: the domain of its members
  // By unit: what a residency takes in its arena as it arrives, and unpacked (0: used as it arrives; the members of a
  // unit are alike); what a reduction takes in its arena and in the scratch.
  std::vector<std::int64_t> gather_bytes, unpacked_bytes, reduce_bytes, scratch_bytes;
  std::vector<Residency> residencies;  // in the order of issue
  std::vector<Reduction> reductions;   // in the order of issue
  std::int64_t gather_arena = 0;       // bytes: the greatest end of a residency
  std::int64_t reduce_arena = 0;       // bytes: the greatest end of a reduction
  std::int64_t scratch = 0;            // bytes of the exchanges' own buffer: what the largest exchange takes

  bool unpacks(int unit) const { return unpacked_bytes[static_cast<std::size_t>(unit)] > 0; }
  int optimizer_events() const { return events - body; }
  int position_of(int index) const { return index < body ? index : index - events; }
  bool operator==(const Schedule&) const = default;
};

// Of what every rank of a communicator must hold alike: order, members, microbatches (not offsets, not positions).
std::uint64_t gather_hash(const Schedule& schedule);
std::uint64_t reduce_hash(const Schedule& schedule);

}  // namespace tessera::schedule
