#include "tessera/plan/replica_kinds.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tessera/data/sampler.h"

namespace tessera::plan {
namespace {

using Groups = std::map<int, std::vector<int>>;  // by gtp rank

// A replica with its unused slots and its shape.
struct LiveReplica {
  int dp = 0;
  Groups unused;
  std::vector<std::vector<int>> shape;  // live slots of each tp group with at least one live slot
  std::vector<int> live;                // sizes of the vectors in shape, in descending order
};

std::vector<LiveReplica> live_replicas(const settings::PlaceMap& unused, const nn::MeshDegrees& degrees) {
  std::vector<LiveReplica> replicas;
  for (int dp = 0; dp < degrees.dp; ++dp) {
    LiveReplica replica{.dp = dp, .unused = {}, .shape = {}, .live = {}};
    for (int gtp = 0; gtp < degrees.gtp; ++gtp) {
      const auto found = unused.find({.dp = dp, .gtp = gtp});
      if (found != unused.end() && !found->second.empty()) replica.unused.emplace(gtp, found->second);
      std::vector<int> slots = settings::active_slots(unused, {.dp = dp, .gtp = gtp}, degrees.tp);
      if (slots.empty()) continue;
      replica.live.push_back(static_cast<int>(slots.size()));
      replica.shape.push_back(std::move(slots));
    }
    std::ranges::sort(replica.live, std::greater{});
    if (!replica.live.empty()) replicas.push_back(std::move(replica));
  }
  return replicas;
}

settings::PlaceMap as_first_replica(const Groups& unused) {
  settings::PlaceMap map;
  for (const auto& [gtp, slots] : unused) map[{.dp = 0, .gtp = gtp}] = slots;
  return map;
}

// Returns the shape of the largest class of equal replicas. If several classes are equally large, returns the shape of
// the class with the lowest replica.
std::vector<std::vector<int>> largest_class(const std::vector<LiveReplica>& replicas, int& size) {
  std::map<std::vector<std::vector<int>>, int> counts;
  for (const LiveReplica& replica : replicas) size = std::max(size, ++counts[replica.shape]);
  for (const LiveReplica& replica : replicas)
    if (counts[replica.shape] == size) return replica.shape;
  return {};
}

}  // namespace

std::int64_t ReplicaKind::ranks() const {
  return std::accumulate(live.begin(), live.end(), std::int64_t{0});
}

bool ReplicaKinds::any_reduced() const {
  return std::ranges::any_of(kinds, &ReplicaKind::is_reduced);
}

std::int64_t ReplicaKinds::ranks() const {
  std::int64_t all = 0;
  for (const ReplicaKind& kind : kinds) all += kind.ranks() * static_cast<std::int64_t>(kind.replicas.size());
  return all;
}

ReplicaKinds replica_kinds(const settings::PlaceMap& unused, const nn::MeshDegrees& degrees) {
  const std::vector<LiveReplica> replicas = live_replicas(unused, degrees);
  ReplicaKinds result{.kinds = {}, .replicas = static_cast<int>(replicas.size())};
  const std::vector<std::vector<int>> updating = largest_class(replicas, result.updating);
  std::map<std::vector<int>, std::vector<const LiveReplica*>, std::greater<>> by_live;
  for (const LiveReplica& replica : replicas) by_live[replica.live].push_back(&replica);
  for (const auto& [live, members] : by_live) {
    ReplicaKind kind{.replicas = {}, .live = live, .unused = {}};
    const LiveReplica* planned = members.front();
    kind.updates = false;
    for (const LiveReplica* member : members) {
      kind.replicas.push_back(member->dp);
      if (member->unused > planned->unused) planned = member;
    }
    for (const LiveReplica* member : members)
      if (member->shape == updating) planned = member, kind.updates = true;
    kind.unused = as_first_replica(planned->unused);
    kind.is_reduced = live.back() < degrees.tp;
    result.kinds.push_back(std::move(kind));
  }
  std::ranges::stable_sort(result.kinds, std::greater{}, &ReplicaKind::ranks);
  const auto is_one_group = [](const ReplicaKind& kind) { return !kind.is_reduced && kind.live.size() == 1; };
  result.all_reduces = unused.empty() || std::ranges::all_of(result.kinds, is_one_group);
  return result;
}

StepPlanRequest request_of(const ReplicaKind& kind, const ReplicaKinds& kinds, StepPlanRequest request,
                           std::int64_t microbatches) {
  const auto readers = static_cast<std::int64_t>(kind.live.size());
  request.run = request.run.replica(kind.unused, microbatches * request.run->micro_batch * readers);
  if (kinds.any_reduced()) request.run = request.run.with_lookup(settings::Lookup::gather);
  request.replica = predict::ReplicaOfMesh{.ranks = kinds.ranks(),
                                           .replicas = kinds.replicas,
                                           .updating = kinds.updating,
                                           .updates = kind.updates,
                                           .all_reduces = kinds.all_reduces};
  return request;
}

std::string kind_text(const ReplicaKind& kind, const nn::MeshDegrees& degrees) {
  if (kind.unused.empty()) return "full";
  std::vector<std::string> groups;
  for (auto first = kind.live.begin(); first != kind.live.end();) {
    const auto end = std::find_if(first, kind.live.end(), [&](int ranks) { return ranks != *first; });
    groups.push_back(fmt::format("{} x {}", end - first, *first));
    first = end;
  }
  return fmt::format("{} of {} x {} ranks", fmt::join(groups, " + "), degrees.gtp, degrees.tp);
}

settings::PlaceMap in_order_of_ranks(const settings::PlaceMap& unused, const nn::MeshDegrees& degrees) {
  std::map<int, std::vector<int>> counts;  // by replica: numbers of unused slots of its tp groups, without zeros
  for (const auto& [group, slots] : unused)
    if (!slots.empty()) counts[group.dp].push_back(static_cast<int>(slots.size()));
  settings::PlaceMap ordered;
  for (auto& [dp, of_groups] : counts) {
    std::ranges::sort(of_groups);
    int gtp = degrees.gtp - static_cast<int>(of_groups.size());
    for (const int slots : of_groups) {
      std::vector<int>& highest = ordered[{.dp = dp, .gtp = gtp++}];
      for (int slot = degrees.tp - slots; slot < degrees.tp; ++slot) highest.push_back(slot);
    }
  }
  return ordered;
}

settings::PlaceMap dead_at_random(double share, std::uint64_t seed, const nn::MeshDegrees& degrees) {
  const std::int64_t places = degrees.places();
  const data::Permutation order({.seed = seed}, places);
  settings::PlaceMap dead;
  for (std::int64_t i = 0; i < std::llround(share * static_cast<double>(places)); ++i) {
    const std::int64_t place = order(i), group = place / degrees.tp;
    dead[{.dp = static_cast<int>(group / degrees.gtp), .gtp = static_cast<int>(group % degrees.gtp)}].push_back(
        static_cast<int>(place % degrees.tp));
  }
  for (auto& [group, slots] : dead) std::ranges::sort(slots);
  return dead;
}

}  // namespace tessera::plan
