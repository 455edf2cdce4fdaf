#include "tessera/schedule/check/together.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

namespace tessera::schedule {
namespace {

constexpr std::size_t kMaxFaults = 10;

// Returns, by role, the indices of the role's calls in order.calls.
std::vector<std::vector<int>> calls_by_role(const CallOrder& order) {
  std::vector<std::vector<int>> by_role(order.roles.size());
  for (std::size_t call = 0; call < order.calls.size(); ++call)
    by_role[static_cast<std::size_t>(order.calls[call].role)].push_back(static_cast<int>(call));
  return by_role;
}

std::string describe(const CollectiveCall& call) {
  return fmt::format("{} of {} bytes", call.what, call.bytes);
}

// The order of calls of a rank, and for each role the node space of its calls. A node space numbers the calls of a
// communicator.
struct Chain {
  int order = 0;
  std::vector<int> spaces;  // index: role; a communicator, or a set of equal communicators
  int rank = 0;             // one of the ranks with this order

  auto key() const { return std::tie(order, spaces); }
};

// One step of a cycle: on `rank`, `before` is called before `after`.
struct Step {
  int rank = 0;
  const CollectiveCall* before = nullptr;
  const CollectiveCall* after = nullptr;
};

// The graph of all calls. It has an edge from each call of a chain to the next call of this chain.
class Merge {
 public:
  Merge(const std::vector<CallOrder>& orders, const std::vector<Chain>& chains, int spaces)
      : orders_(orders), chains_(chains), first_node_(static_cast<std::size_t>(spaces) + 1, 0) {
    number_instances();
    link();
  }

  // Returns the steps of a cycle, or an empty vector if the graph has no cycle.
  std::vector<Step> cycle() const {
    std::vector<int> waiting_for(nodes_.size(), 0);
    for (const auto& node : nodes_)
      for (const Edge& edge : node) ++waiting_for[static_cast<std::size_t>(edge.to)];
    std::vector<int> ready;
    for (std::size_t node = 0; node < nodes_.size(); ++node)
      if (waiting_for[node] == 0) ready.push_back(static_cast<int>(node));
    while (!ready.empty()) {
      const auto node = static_cast<std::size_t>(ready.back());
      ready.pop_back();
      for (const Edge& edge : nodes_[node])
        if (--waiting_for[static_cast<std::size_t>(edge.to)] == 0) ready.push_back(edge.to);
    }
    return walk_back(waiting_for);
  }

 private:
  struct Edge {
    int to = 0, chain = 0, call = 0;  // `call` is an index into the chain's order; the next call is the node `to`
  };

  void number_instances() {
    for (const Chain& chain : chains_) {
      const auto by_role = calls_by_role(orders_[static_cast<std::size_t>(chain.order)]);
      for (std::size_t role = 0; role < by_role.size(); ++role) {
        int& count = first_node_[static_cast<std::size_t>(chain.spaces[role]) + 1];
        count = std::max(count, static_cast<int>(by_role[role].size()));
      }
    }
    for (std::size_t space = 1; space < first_node_.size(); ++space) first_node_[space] += first_node_[space - 1];
    nodes_.resize(static_cast<std::size_t>(first_node_.back()));
  }

  void link() {
    for (std::size_t c = 0; c < chains_.size(); ++c) {
      const Chain& chain = chains_[c];
      const auto& calls = orders_[static_cast<std::size_t>(chain.order)].calls;
      std::vector<int> made(chain.spaces.size(), 0);
      int previous = -1;
      for (std::size_t call = 0; call < calls.size(); ++call) {
        const auto role = static_cast<std::size_t>(calls[call].role);
        const int node = first_node_[static_cast<std::size_t>(chain.spaces[role])] + made[role]++;
        if (previous >= 0)
          nodes_[static_cast<std::size_t>(previous)].push_back({node, static_cast<int>(c), static_cast<int>(call) - 1});
        previous = node;
      }
    }
  }

  // Every node that still waits has a predecessor that still waits, so walking to predecessors reaches a cycle.
  std::vector<Step> walk_back(const std::vector<int>& waiting_for) const {
    std::vector<std::pair<int, Edge>> before(nodes_.size(), {-1, {}});
    int at = -1;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      if (waiting_for[node] == 0) continue;
      at = static_cast<int>(node);
      for (const Edge& edge : nodes_[node])
        if (waiting_for[static_cast<std::size_t>(edge.to)] > 0) before[static_cast<std::size_t>(edge.to)] = {at, edge};
    }
    if (at < 0) return {};
    std::vector<bool> seen(nodes_.size(), false);
    while (!seen[static_cast<std::size_t>(at)]) {
      seen[static_cast<std::size_t>(at)] = true;
      at = before[static_cast<std::size_t>(at)].first;
    }
    std::vector<Step> steps;
    for (const int start = at; steps.empty() || at != start; at = before[static_cast<std::size_t>(at)].first) {
      const Edge& edge = before[static_cast<std::size_t>(at)].second;
      const Chain& chain = chains_[static_cast<std::size_t>(edge.chain)];
      const CollectiveCall* call =
          &orders_[static_cast<std::size_t>(chain.order)].calls[static_cast<std::size_t>(edge.call)];
      steps.push_back({chain.rank, call, call + 1});
    }
    std::ranges::reverse(steps);
    return steps;
  }

  const std::vector<CallOrder>& orders_;
  const std::vector<Chain>& chains_;
  std::vector<int> first_node_;  // index: node space
  std::vector<std::vector<Edge>> nodes_;
};

class TogetherCheck {
 public:
  explicit TogetherCheck(const RankOrders& input) : input_(input) {}

  std::vector<std::string> run() {
    check_members();
    if (!faults_.empty()) return std::move(faults_);
    classify();
    for (std::size_t c = 0; c < input_.communicators.size() && faults_.size() < kMaxFaults; ++c)
      compare_members(static_cast<int>(c));
    if (!faults_.empty()) return std::move(faults_);
    check_cycles();
    return std::move(faults_);
  }

 private:
  const CheckedRank& rank(int index) const { return input_.ranks[static_cast<std::size_t>(index)]; }
  const CallOrder& order_of(int index) const { return input_.orders[static_cast<std::size_t>(class_of(index))]; }
  int class_of(int index) const { return class_[static_cast<std::size_t>(rank(index).order)]; }
  const std::string& name(int communicator) const {
    return input_.communicators[static_cast<std::size_t>(communicator)].name;
  }

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Checks that ranks and communicators refer to each other, and that each rank is a member once.
  void check_members() {
    const auto ranks = static_cast<int>(input_.ranks.size());
    const auto communicators = static_cast<int>(input_.communicators.size());
    std::vector<std::vector<int>> joined(input_.ranks.size());
    for (int c = 0; c < communicators; ++c)
      for (const int r : input_.communicators[static_cast<std::size_t>(c)].ranks) {
        if (r < 0 || r >= ranks) return add("'{}': expected ranks below {}, got {}", name(c), ranks, r);
        std::vector<int>& of_rank = joined[static_cast<std::size_t>(r)];
        if (!of_rank.empty() && of_rank.back() == c) return add("'{}': rank {} is a member twice", name(c), r);
        of_rank.push_back(c);
      }
    for (int r = 0; r < ranks; ++r) {
      if (rank(r).order < 0 || rank(r).order >= static_cast<int>(input_.orders.size()))
        return add("rank {}: expected an order below {}, got {}", r, input_.orders.size(), rank(r).order);
      const CallOrder& order = input_.orders[static_cast<std::size_t>(rank(r).order)];
      for (const CollectiveCall& call : order.calls)
        if (call.role < 0 || call.role >= static_cast<int>(order.roles.size()))
          return add("rank {}: {}: expected a role below {}, got {}", r, call.what, order.roles.size(), call.role);
      if (rank(r).communicators.size() != order.roles.size())
        return add("rank {}: expected a communicator for each of {} roles, got {}", r, order.roles.size(),
                   rank(r).communicators.size());
      std::vector<int> held = rank(r).communicators;
      std::ranges::sort(held);
      std::ranges::sort(joined[static_cast<std::size_t>(r)]);
      if (held != joined[static_cast<std::size_t>(r)])
        return add("rank {}: it holds the communicators {}, but is a member of {}", r, held,
                   joined[static_cast<std::size_t>(r)]);
    }
  }

  // Orders that are equal belong to one class. The number of a class is the index of the first of its orders.
  void classify() {
    for (std::size_t order = 0; order < input_.orders.size(); ++order) {
      const auto same = std::ranges::find(input_.orders, input_.orders[order]);
      class_.push_back(static_cast<int>(same - input_.orders.begin()));
      if (class_.back() == static_cast<int>(order))
        by_role_.push_back(calls_by_role(input_.orders[order]));
      else
        by_role_.push_back({});
    }
  }

  std::size_t role_of(int member, int communicator) const {
    const auto& held = rank(member).communicators;
    return static_cast<std::size_t>(std::ranges::find(held, communicator) - held.begin());
  }

  // Compares one member of each class and role with the first member.
  void compare_members(int communicator) {
    const std::vector<int>& members = input_.communicators[static_cast<std::size_t>(communicator)].ranks;
    std::map<std::pair<int, std::size_t>, bool> compared;
    for (const int member : members) {
      if (!compared.emplace(std::pair(class_of(member), role_of(member, communicator)), true).second) continue;
      if (member != members.front() && !compare(communicator, members.front(), member)) return;
    }
  }

  bool compare(int communicator, int left, int right) {
    const auto& of_left = by_role_[static_cast<std::size_t>(class_of(left))][role_of(left, communicator)];
    const auto& of_right = by_role_[static_cast<std::size_t>(class_of(right))][role_of(right, communicator)];
    auto call = [&](const std::vector<int>& calls, int member, std::size_t k) -> const CollectiveCall* {
      return k < calls.size() ? &order_of(member).calls[static_cast<std::size_t>(calls[k])] : nullptr;
    };
    for (std::size_t k = 0; k < std::max(of_left.size(), of_right.size()); ++k) {
      const CollectiveCall *a = call(of_left, left, k), *b = call(of_right, right, k);
      if (a && b && a->what == b->what && a->bytes == b->bytes) continue;
      add("'{}', call {}: rank {} makes {}, rank {} makes {}", name(communicator), k, left,
          a ? describe(*a) : "no call", right, b ? describe(*b) : "no call");
      return false;
    }
    return true;
  }

  // Returns the node space of each communicator. Communicators share a space if their members have the same classes and
  // roles.
  std::vector<int> collapsed_spaces() const {
    std::map<std::vector<std::pair<int, std::size_t>>, int> known;
    std::vector<int> spaces;
    for (std::size_t c = 0; c < input_.communicators.size(); ++c) {
      std::vector<std::pair<int, std::size_t>> kind;
      for (const int member : input_.communicators[c].ranks)
        kind.emplace_back(class_of(member), role_of(member, static_cast<int>(c)));
      std::ranges::sort(kind);
      kind.erase(std::ranges::unique(kind).begin(), kind.end());
      spaces.push_back(known.emplace(kind, static_cast<int>(known.size())).first->second);
    }
    return spaces;
  }

  std::vector<Step> cycle_among(const std::vector<int>& space_of) const {
    std::vector<Chain> chains;
    for (int r = 0; r < static_cast<int>(input_.ranks.size()); ++r) {
      Chain chain{.order = class_of(r), .rank = r};
      for (const int communicator : rank(r).communicators)
        chain.spaces.push_back(space_of[static_cast<std::size_t>(communicator)]);
      chains.push_back(std::move(chain));
    }
    std::ranges::stable_sort(chains, {}, &Chain::key);
    chains.erase(std::ranges::unique(chains, {}, &Chain::key).begin(), chains.end());
    return Merge(input_.orders, chains, static_cast<int>(input_.communicators.size())).cycle();
  }

  void check_cycles() {
    if (cycle_among(collapsed_spaces()).empty()) return;
    std::vector<int> themselves;
    for (std::size_t c = 0; c < input_.communicators.size(); ++c) themselves.push_back(static_cast<int>(c));
    std::vector<Step> steps = cycle_among(themselves);
    if (steps.empty()) return;
    const auto turn = std::ranges::adjacent_find(steps, std::not_equal_to{}, &Step::rank);
    if (turn != steps.end()) std::ranges::rotate(steps, turn + 1);
    std::vector<std::string> parts;  // for each run of steps of one rank: the first and the last collective of the run
    for (auto first = steps.begin(); first != steps.end();) {
      const auto end = std::find_if(first, steps.end(), [&](const Step& step) { return step.rank != first->rank; });
      parts.push_back(fmt::format("rank {} calls {} before {}", first->rank, on(first->rank, *first->before),
                                  on(first->rank, *(end - 1)->after)));
      first = end;
    }
    add("deadlock: {}", fmt::join(parts, "; "));
  }

  std::string on(int r, const CollectiveCall& call) const {
    return fmt::format("{} on '{}'", call.what, name(rank(r).communicators[static_cast<std::size_t>(call.role)]));
  }

  const RankOrders& input_;
  std::vector<int> class_;                              // index: order
  std::vector<std::vector<std::vector<int>>> by_role_;  // index: order; set only for the first order of each class
  std::vector<std::string> faults_;
};

// Collects calls and numbers the roles in the order of their first call.
class CallList {
 public:
  CallOrder take() { return std::move(order_); }
  void add(const std::string& role, std::string what, std::int64_t bytes) {
    const auto at = std::ranges::find(order_.roles, role);
    const auto index = static_cast<int>(at - order_.roles.begin());
    if (at == order_.roles.end()) order_.roles.push_back(role);
    order_.calls.push_back({index, std::move(what), bytes});
  }

 private:
  CallOrder order_;
};

// Describes the collective of an optimizer event, with the weights of the bucket that is published after it.
std::string bucket_call(const Trace& trace, const std::vector<ParameterSize>& sizes, int index) {
  const Event& call = trace[static_cast<std::size_t>(index)];
  std::vector<std::string> names;
  for (auto at = static_cast<std::size_t>(index) + 1; at < trace.size() && trace[at].kind == EventKind::publish; ++at)
    names.push_back(fmt::format("'{}'", sizes[static_cast<std::size_t>(trace[at].parameter)].name));
  return fmt::format("{} ({}) before the publish event of [{}]", call.op, call.ordinal, fmt::join(names, ", "));
}

}  // namespace

std::string role_name(mesh::Transfer transfer, int domain) {
  const std::string_view name = name_of(transfer == mesh::Transfer::publish ? lane_of(transfer) : transfer);
  return domain == 0 ? std::string(name) : fmt::format("{} of domain {}", name, domain);
}

CallOrder call_order(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule) {
  CallList list;
  // Adds one call for each hop of the way. All members of the unit share the call.
  auto add_unit = [&](std::string_view op, const Unit& unit, Way ParameterSize::*way) {
    std::vector<std::string> names;
    Way sum;
    for (const ParameterId id : unit) {
      const ParameterSize& size = sizes[static_cast<std::size_t>(id)];
      names.push_back(fmt::format("'{}'", size.name));
      add_hops(sum, size.*way);
    }
    const int domain = sizes[static_cast<std::size_t>(unit.front())].domain;
    for (const Hop& hop : sum)
      list.add(role_name(hop.transfer, domain), fmt::format("{} [{}]", op, fmt::join(names, ", ")), hop.bytes);
  };
  // Adds the sums one member at a time, because replicas of other classes may have other units.
  auto add_sums = [&](const Unit& unit) {
    for (const ParameterId id : unit) add_unit("sum", {id}, &ParameterSize::replicas);
  };
  std::size_t gather = 0, reduction = 0;
  auto gathers_until = [&](int position) {
    for (; gather < schedule.residencies.size() && schedule.residencies[gather].issue <= position; ++gather) {
      const Unit& unit = schedule.gather_units[static_cast<std::size_t>(schedule.residencies[gather].unit)];
      add_unit("gather", unit, &ParameterSize::gather);
    }
  };
  std::vector<const Unit*> late;  // units that the last microbatch does not reduce
  for (int index = schedule.body; index < schedule.events; ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    if (event.kind == EventKind::comm) list.add(event.group, bucket_call(trace, sizes, index), event.bytes);
    if (event.kind == EventKind::publish) add_unit("publish", {event.parameter}, &ParameterSize::publish);
    gathers_until(schedule.position_of(index));
  }
  gathers_until(-1);
  for (int index = 0; index < schedule.body; ++index) {
    for (; reduction < schedule.reductions.size() && schedule.reductions[reduction].issue <= index; ++reduction) {
      const Reduction& it = schedule.reductions[reduction];
      const Unit& unit = schedule.reduce_units[static_cast<std::size_t>(it.unit)];
      add_unit("reduce", unit, &ParameterSize::reduce);
      if (!it.replicas) continue;
      if (it.microbatch + 1 < schedule.microbatches)
        late.push_back(&unit);
      else
        add_sums(unit);
    }
    gathers_until(index);
    const Event& event = trace[static_cast<std::size_t>(index)];
    if (event.kind == EventKind::comm) list.add(event.group, event.op, event.bytes);
  }
  for (const Unit* unit : late) add_sums(*unit);
  return list.take();
}

std::vector<std::string> check_together(const RankOrders& orders) {
  return TogetherCheck(orders).run();
}

}  // namespace tessera::schedule
