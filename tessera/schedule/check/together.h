// The checker across ranks: proves that the ranks' collectives, taken together, cannot deadlock and pair up as meant.
//
// Each rank enqueues the collectives of all its lanes in one order, the host's; a lane's order and every wait of a rank
// that check.h accepts follow it, so what holds for that order holds for the lanes, and for a GPU that may hold back
// any later work for any earlier. The k-th call on a communicator is one instance for all its members. Proved: on every
// communicator all members make the same calls in the same order, and the instances, each after the ones before it on
// any rank, form no cycle.
//
// One cycle of steps (the optimizer's events with the prefetches under them, then the body) is enough: it makes the
// same number of calls on a communicator for all its members, so the k-th call of one step meets the k-th of the same
// step everywhere, and no instance waits for one of a later step.
//
// Ranks alike are collapsed: ranks of one call order and, as communicators, ones whose members have the same orders are
// taken for one. Waiting is kept by that, so no cycle among the collapsed means none among the ranks; where there is
// one all ranks are looked at.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// One collective as a rank calls it.
struct CollectiveCall {
  int role = 0;            // of CallOrder::roles: which of the rank's communicators
  std::string what;        // alike on all members: "gather ['w1', 'w2']"
  std::int64_t bytes = 0;  // alike on all members

  bool operator==(const CollectiveCall&) const = default;
};

// The role of one hop of a parameter's ways in a domain: "reduce" in the first, "reduce of domain 1" in another.
std::string role_name(std::string_view hop, int domain);

// What ranks that behave alike call in one cycle, in the host's order.
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
  int order = 0;                   // of RankOrders::orders
  std::vector<int> communicators;  // by role of that order: of RankOrders::communicators
};

struct RankOrders {
  std::vector<CallOrder> orders;
  std::vector<CheckedCommunicator> communicators;
  std::vector<CheckedRank> ranks;
};

// The calls of a rank that carries out `schedule`. First the optimizer's events of the step before: each bucket's
// message of amaxes, named with the weights that are published after it, and the prefetches; then at each event of the
// body its own collective, the reductions issued there (over compute ranks, over the ranks that store, over replicas),
// the gathers issued there (and their second hop for what does not join); last the sums over replicas of units that the
// last microbatch does not reduce.
CallOrder call_order(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule);

// Empty: proved. Otherwise the first difference of each communicator (both ranks, both calls) or one cycle (each
// collective with the rank on which it comes before the next).
std::vector<std::string> check_together(const RankOrders& orders);

}  // namespace tessera::schedule
