// The checker across ranks proves that the collectives of all ranks match and cannot deadlock.
//
// The host of a rank enqueues the collectives of all lanes of the rank in one order. Each lane executes its work in
// this order. Every wait that check.h accepts is for work that the host enqueued earlier. A proof for the host's order
// therefore holds for the lanes. The proof also holds for a GPU with few hardware queues, on which work may have to
// wait for any work that the host enqueued before it.
//
// The k-th calls of all members of a communicator are one instance of a collective. An instance depends on all earlier
// instances of its ranks. The checker proves two properties. First, on every communicator, all members make equal calls
// in the same order. Second, the dependencies between instances have no cycle.
//
// Checking one step is enough: the optimizer's events with the prefetches, then the body. In a step, all members of a
// communicator make the same number of calls on it. Calls of different steps are therefore never one instance, and an
// instance does not depend on a later step.
//
// To keep the check fast, the checker merges ranks with the same call order into one rank. It also merges communicators
// whose members have the same call orders. Merging keeps all dependencies, so a cycle among ranks is also a cycle among
// merged ranks. If the merged ranks have a cycle, the checker examines all ranks.
#pragma once
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// One collective that a rank calls.
struct CollectiveCall {
  int role = 0;            // index into CallOrder::roles; selects one of the rank's communicators
  std::string what;        // equal on all members, for example "gather ['w1', 'w2']"
  std::int64_t bytes = 0;  // equal on all members

  bool operator==(const CollectiveCall&) const = default;
};

// Returns the role of a transfer in a domain. For example, the transfer `reduce` has the role "reduce" in domain 0, and
// "reduce of domain 1" in domain 1. A publish event has the role of `replicas`.
std::string role_name(mesh::Transfer transfer, int domain);

// The collectives that the ranks of one class call in one step, in the host's order.
struct CallOrder {
  // The results of role_name() for the hops, and the groups of comm events.
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
  std::vector<int> communicators;  // by role of the rank's call order: index into RankOrders::communicators
};

struct RankOrders {
  std::vector<CallOrder> orders;
  std::vector<CheckedCommunicator> communicators;
  std::vector<CheckedRank> ranks;
};

// Returns the calls of a rank that executes `schedule`, in this order:
// - For each of the optimizer's events of the previous step: the event's own collective, then the gathers issued at the
//   event. The collective is the all-reduce of a bucket's amaxes, or the exchange of a published weight that replicas
//   update in parts (ZeRO-1). The name of the all-reduce contains the weights of the bucket.
// - For each event of the body: the reductions issued at the event, then the gathers issued at the event, then the
//   event's own collective. Reductions run over compute ranks, storage ranks and replicas. Gathers include both hops.
// - The sums over replicas of units that the last microbatch does not reduce.
CallOrder call_order(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule);

// Returns an empty vector if the orders match and cannot deadlock. Otherwise returns the first difference on each
// communicator, with both ranks and both calls. If the orders match but can deadlock, returns the collectives of one
// cycle, each with the rank that calls it before the next collective of the cycle.
std::vector<std::string> check_together(const RankOrders& orders);

}  // namespace tessera::schedule
