// The checker across ranks proves that the collectives of all ranks match and cannot deadlock.
//
// Each rank enqueues the collectives of all its lanes in one order, the order of its host. The order of a lane follows
// the host's order, and so does every wait that check.h accepts. A proof for the host's order therefore holds for the
// lanes. The proof also holds for a GPU that delays any later work until any earlier work is done. The k-th calls of
// all members of a communicator are one instance. The checker proves two properties. On every communicator, all members
// make the same calls in the same order. The instances form no cycle, where an instance depends on all earlier
// instances of its ranks.
//
// Checking one step is enough: the optimizer's events with the prefetches, then the body. All members of a communicator
// make the same number of calls on it in a step. The k-th calls in a step therefore match on all members, and no
// instance depends on an instance of a later step.
//
// Equal ranks are merged, which keeps the check fast. Ranks with the same call order become one rank. Communicators
// whose members have the same orders become one communicator. Merging keeps all dependencies, so a cycle among ranks is
// also a cycle after merging. If the merged ranks have a cycle, the checker examines all ranks.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// One collective as a rank calls it.
struct CollectiveCall {
  int role = 0;            // index into CallOrder::roles; selects one of the rank's communicators
  std::string what;        // equal on all members: "gather ['w1', 'w2']"
  std::int64_t bytes = 0;  // equal on all members

  bool operator==(const CollectiveCall&) const = default;
};

// Returns the role of one hop in a domain: "reduce" in the first domain, "reduce of domain 1" in the next domain.
std::string role_name(std::string_view hop, int domain);

// The collectives that the ranks of one class call in one step, in the host's order.
struct CallOrder {
  // role_name() of "gather", "gather_compute", "reduce_compute", "reduce" and "replicas", and the groups of comm
  // events.
  std::vector<std::string> roles;
  std::vector<CollectiveCall> calls;

  bool operator==(const CallOrder&) const = default;
};

struct CheckedCommunicator {
  std::string name;
  std::vector<int> ranks;
};

struct CheckedRank {
  int order = 0;                   // index into RankOrders::orders
  std::vector<int> communicators;  // by role of its order: index into RankOrders::communicators
};

struct RankOrders {
  std::vector<CallOrder> orders;
  std::vector<CheckedCommunicator> communicators;
  std::vector<CheckedRank> ranks;
};

// Returns the calls of a rank that executes `schedule`, in this order:
// - For the optimizer's events of the previous step: the all-reduce of each bucket's amaxes, and the prefetches. The
//   all-reduce is named after the weights that are published after it.
// - For each event of the body: its own collective, then the reductions issued there, then the gathers issued there.
//   Reductions run over compute ranks, storage ranks and replicas. Gathers include their second hop.
// - The sums over replicas of units that the last microbatch does not reduce.
CallOrder call_order(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule);

// Returns an empty vector if the orders match and cannot deadlock. Otherwise returns the first difference on each
// communicator (both ranks, both calls) or one cycle (each collective, with the rank that calls it before the next
// one).
std::vector<std::string> check_together(const RankOrders& orders);

}  // namespace tessera::schedule
