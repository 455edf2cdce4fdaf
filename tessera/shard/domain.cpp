#include "tessera/shard/domain.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

using mesh::Axes, mesh::Mesh, mesh::Transfer;

// The transfers of a schedule that have roles in the checker. Publishes have the role of `replicas`.
constexpr std::array kCheckedTransfers{Transfer::gather, Transfer::gather_compute, Transfer::reduce_compute,
                                       Transfer::reduce, Transfer::replicas,       Transfer::rows};

Axes together(Axes axes, const Axes& more) {
  axes.insert(axes.end(), more.begin(), more.end());
  return axes;
}

int place_in(const std::vector<int>& group, int rank) {
  return static_cast<int>(std::ranges::find(group, rank) - group.begin());
}

// Orders of ranks and duplicates are derived from the axes alone, so a domain must name all axes of one grid.
void check_axes(const Mesh& mesh, const Domain& domain) {
  const Axes named = together(together(together(domain.compute, domain.storage), domain.duplicates), domain.replicas);
  TESSERA_CHECK(!domain.compute.empty() && !domain.storage.empty() && !domain.replicas.empty(),
                "a domain names {} compute, {} storage and {} replica axes, expected at least one of each",
                domain.compute.size(), domain.storage.size(), domain.replicas.size());
  const auto is_named = [&](const mesh::Grid& grid) { return std::ranges::equal(grid, named, {}, &mesh::Axis::name); };
  TESSERA_CHECK(
      std::ranges::any_of(mesh.grids(), is_named),
      "a domain names the axes {} (compute, storage, duplicates, replicas), expected all axes of one grid in its "
      "order",
      fmt::join(named, ", "));
}

// Returns the shapes of all replicas that have a rank.
std::vector<ReplicaShape> shapes_of(const Mesh& mesh, const Domain& domain) {
  std::map<int, ReplicaShape> by_coordinate;
  for (const std::vector<int>& group : mesh.groups(domain.compute)) {
    ReplicaShape& shape = by_coordinate[mesh.coordinate(group.front(), domain.replicas)];
    if (mesh.coordinate(group.front(), domain.duplicates) > 0) continue;
    Slots& slots = shape.emplace_back();
    for (const int rank : group) slots.push_back(mesh.coordinate(rank, domain.compute));
  }
  std::vector<ReplicaShape> shapes;
  for (auto& [coordinate, shape] : by_coordinate) shapes.push_back(std::move(shape));
  return shapes;
}

// Returns the coordinates of the replicas that have a rank.
std::vector<int> replicas_of(const Mesh& mesh, const Domain& domain) {
  std::set<int> found;
  for (int rank = 0; rank < mesh.world_size(); ++rank) found.insert(mesh.coordinate(rank, domain.replicas));
  return {found.begin(), found.end()};
}

int replica_of(const Mesh& mesh, const Domain& domain, int rank) {
  const int coordinate = mesh.coordinate(rank, domain.replicas);
  if (!mesh.has_dead_places()) return coordinate;
  return place_in(replicas_of(mesh, domain), coordinate);
}

bool is_short(const Mesh& mesh, const Domain& domain, const std::vector<int>& compute_group) {
  return static_cast<int>(compute_group.size()) < mesh.size(domain.compute);
}

bool has_short_groups(const Mesh& mesh, const Domain& domain) {
  return mesh.has_dead_places() && std::ranges::any_of(mesh.groups(domain.compute), [&](const std::vector<int>& group) {
           return is_short(mesh, domain, group);
         });
}

void check_duplicates(const Mesh& mesh, const Domain& domain, const Cuts& cuts) {
  if (cuts.duplicates == 1 || !mesh.has_dead_places()) return;
  for (const std::vector<int>& group : mesh.groups(domain.compute))
    TESSERA_CHECK(!is_short(mesh, domain, group),
                  "mesh: {} ranks use a weight of rank {}, expected {}: in a domain with duplicates, dead places among "
                  "them are not supported",
                  group.size(), group.front(), cuts.slots);
  std::map<int, std::size_t> stored;  // key: replica; number of ranks that store a part
  for (const std::vector<int>& group : mesh.groups(domain.storage)) {
    const std::size_t known =
        stored.try_emplace(mesh.coordinate(group.front(), domain.replicas), group.size()).first->second;
    TESSERA_CHECK(
        known == group.size(),
        "mesh: in one replica {} ranks store a part of a weight and {} ranks another part, expected equal numbers",
        known, group.size());
  }
  for (const std::vector<int>& group : mesh.groups(together(domain.storage, domain.duplicates))) {
    const std::size_t parts = stored.at(mesh.coordinate(group.front(), domain.replicas));
    TESSERA_CHECK(group.size() == parts * static_cast<std::size_t>(cuts.duplicates),
                  "mesh: {} ranks add gradients of a part, expected {} parts in {} duplicates", group.size(), parts,
                  cuts.duplicates);
  }
}

}  // namespace

int Cuts::max_parts() const {
  int most = parts;
  for (const ReplicaShape& shape : shapes) most = std::max(most, static_cast<int>(shape.size()));
  return most;
}

bool Cuts::is_reduced(int replica) const {
  return !shapes.empty() && std::ranges::any_of(shapes[static_cast<std::size_t>(replica)], [&](const Slots& group) {
    return static_cast<int>(group.size()) < slots;
  });
}

bool Cuts::any_reduced() const {
  for (int each = 0; each < static_cast<int>(shapes.size()); ++each)
    if (is_reduced(each)) return true;
  return false;
}

ReplicaShape Cuts::own_shape() const {
  if (!shapes.empty()) return shapes[static_cast<std::size_t>(replica)];
  Slots full(static_cast<std::size_t>(slots));
  std::iota(full.begin(), full.end(), 0);
  return {static_cast<std::size_t>(parts), full};
}

int Cuts::number_in_replica(int part, int compute) const {
  if (shapes.empty()) return part * slots + compute;
  int number = compute;
  for (int before = 0; before < part; ++before)
    number += static_cast<int>(shapes[static_cast<std::size_t>(replica)][static_cast<std::size_t>(before)].size());
  return number;
}

std::vector<int> Cuts::updating_replicas() const {
  std::vector<int> best;
  for (int first = 0; first < replicas; ++first) {
    std::vector<int> equal;
    for (int each = 0; each < replicas; ++each)
      if (shapes.empty() || shapes[static_cast<std::size_t>(each)] == shapes[static_cast<std::size_t>(first)])
        equal.push_back(each);
    if (equal.size() > best.size()) best = std::move(equal);
    if (shapes.empty()) break;
  }
  return best;
}

Cuts cuts_of(const Mesh& mesh, const Domain& domain, int rank) {
  check_axes(mesh, domain);
  Cuts cuts{.parts = mesh.size(domain.storage),
            .replicas = mesh.size(domain.replicas),
            .duplicates = mesh.size(domain.duplicates),
            .slots = mesh.size(domain.compute),
            .replica = replica_of(mesh, domain, rank)};
  if (!mesh.has_dead_places()) return cuts;
  check_duplicates(mesh, domain, cuts);
  cuts.shapes = shapes_of(mesh, domain);
  cuts.replicas = static_cast<int>(cuts.shapes.size());
  cuts.parts = cuts.parts_of(cuts.replica);
  return cuts;
}

Place place_of(const Mesh& mesh, const Domain& domain, int rank) {
  const std::vector<int> group = mesh.group_of(rank, domain.compute);
  std::set<int> groups;  // coordinates of the compute groups that have ranks, at the coordinate of the rank's duplicate
  for (const int other : mesh.group_of(rank, together(domain.compute, domain.storage)))
    groups.insert(mesh.coordinate(other, domain.storage));
  return {.compute = place_in(group, rank),
          .part = static_cast<int>(
              std::ranges::distance(groups.begin(), groups.find(mesh.coordinate(rank, domain.storage)))),
          .replica = replica_of(mesh, domain, rank),
          .duplicate = mesh.coordinate(rank, domain.duplicates)};
}

mesh::Role role_of(const Mesh& mesh, const Domain& domain, Transfer transfer) {
  using enum Transfer;
  const auto axes = [&]() -> Axes {
    const Axes storage = has_short_groups(mesh, domain) ? together(domain.compute, domain.storage) : domain.storage;
    switch (transfer) {
      case gather:
      case demand:
      case rows:
        return storage;
      case program:
      case gather_compute:
      case reduce_compute:
        return domain.compute;
      case reduce:
        return together(storage, domain.duplicates);
      case replicas:
      case publish:
        return mesh.has_dead_places() ? together(storage, domain.replicas) : domain.replicas;
      case losses:
        return together(domain.storage, domain.replicas);
      case norm:
      case agreement:
      case casts:
      case replica_matrices:
        return mesh.all_axes();
      case matrices:
        return together(together(domain.compute, domain.storage), domain.duplicates);
    }
    return {};
  };
  return {lane_of(transfer), axes()};
}

namespace {

// Returns groups_of for `losses` in a mesh with compute groups that lack ranks.
std::vector<std::vector<int>> loss_groups(const Mesh& mesh, const Domain& first) {
  const std::vector<std::vector<int>> readers = mesh.groups(first.compute);
  std::size_t least = readers.front().size();
  for (const std::vector<int>& group : readers) least = std::min(least, group.size());
  std::vector<std::vector<int>> groups(least);
  for (const std::vector<int>& group : readers)
    for (std::size_t k = 0; k < least; ++k) groups[k].push_back(group[k]);
  for (const std::vector<int>& group : readers)
    groups.front().insert(groups.front().end(), group.begin() + static_cast<std::ptrdiff_t>(least), group.end());
  return groups;
}

}  // namespace

std::vector<std::vector<int>> groups_of(const Mesh& mesh, const Domain& domain, Transfer transfer) {
  const mesh::Role role = role_of(mesh, domain, transfer);
  if (!has_short_groups(mesh, domain)) return groups_of(mesh, role);
  if (transfer == Transfer::losses) return loss_groups(mesh, domain);
  constexpr std::array kOverParts{Transfer::gather, Transfer::demand, Transfer::rows, Transfer::reduce};
  if (std::ranges::find(kOverParts, transfer) == kOverParts.end()) return groups_of(mesh, role);
  std::vector<std::vector<int>> groups;
  for (const std::vector<int>& replica : mesh.groups(role.axes)) {
    const auto is_in_short = [&](int rank) { return is_short(mesh, domain, mesh.group_of(rank, domain.compute)); };
    const bool has_parts =
        mesh.coordinate(replica.front(), domain.storage) != mesh.coordinate(replica.back(), domain.storage);
    if (has_parts && std::ranges::any_of(replica, is_in_short)) {
      groups.push_back(replica);
      continue;
    }
    for (const int rank : replica)
      if (std::vector<int> group = mesh.group_of(rank, domain.storage); group.front() == rank)
        groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<int> classes_of(const Mesh& mesh, const std::vector<Domain>& domains) {
  std::vector<int> classes(static_cast<std::size_t>(mesh.world_size()), 0);
  if (!mesh.has_dead_places()) return classes;
  std::vector<std::vector<ReplicaShape>> shapes;  // index: domain; shapes of the replicas
  std::vector<std::vector<int>> replicas;         // index: domain; coordinates of the replicas
  for (const Domain& domain : domains) {
    shapes.push_back(shapes_of(mesh, domain));
    replicas.push_back(replicas_of(mesh, domain));
  }
  // Key: the shapes of the rank's replica, one for each domain; value: the class.
  std::map<std::vector<ReplicaShape>, int> known;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<ReplicaShape> own;
    for (std::size_t domain = 0; domain < domains.size(); ++domain) {
      const int replica = mesh.coordinate(rank, domains[domain].replicas);
      const auto number = std::ranges::lower_bound(replicas[domain], replica) - replicas[domain].begin();
      own.push_back(shapes[domain][static_cast<std::size_t>(number)]);
    }
    classes[static_cast<std::size_t>(rank)] =
        known.try_emplace(std::move(own), static_cast<int>(known.size())).first->second;
  }
  return classes;
}

ComputeGroup compute_group_of(const Mesh& mesh, const Domain& domain, const Domain& first, int rank) {
  const std::vector<int> group = mesh.group_of(rank, domain.compute);
  ComputeGroup result{
      .rank = place_in(group, rank), .size = static_cast<int>(group.size()), .nominal_size = mesh.size(domain.compute)};
  for (const int member : group) {
    result.slots.push_back(mesh.coordinate(member, domain.compute));
    result.first_ranks.push_back(place_in(mesh.group_of(member, first.compute), member));
  }
  for (const std::string& axis : domain.compute) result.axes.push_back({mesh.coordinate(rank, axis), mesh.size(axis)});
  if (!has_short_groups(mesh, domain)) return result;
  Slots full(static_cast<std::size_t>(result.nominal_size));
  std::iota(full.begin(), full.end(), 0);
  result.shapes.push_back(std::move(full));
  for (const ReplicaShape& shape : shapes_of(mesh, domain))
    for (const Slots& slots : shape)
      if (std::ranges::find(result.shapes, slots) == result.shapes.end()) result.shapes.push_back(slots);
  return result;
}

std::string program_name(const Domain& domain) {
  return fmt::format("{}", fmt::join(domain.compute, "-"));
}

std::vector<schedule::Lanes> lanes_of_hops(const Mesh& mesh, const std::vector<Domain>& domains) {
  using Groups = std::vector<std::vector<int>>;
  using Strides = std::vector<std::pair<int, int>>;
  // Groups are compared by their strides, because a mesh may have a million ranks. In a mesh with dead places, equal
  // groups may have different strides, so groups are compared by their ranks.
  std::map<std::tuple<Transfer, Strides, Groups>, int> numbers;
  const bool has_dead = mesh.has_dead_places();
  std::vector<schedule::Lanes> lanes;
  for (const Domain& domain : domains) {
    lanes.emplace_back();
    for (const Transfer hop : schedule::kHops) {
      const mesh::Role role = role_of(mesh, domain, hop);
      std::tuple key(role.transfer, has_dead ? Strides() : mesh.strides(role.axes),
                     has_dead ? groups_of(mesh, domain, hop) : Groups());
      lanes.back()[hop] = numbers.try_emplace(std::move(key), static_cast<int>(numbers.size())).first->second;
    }
  }
  return lanes;
}

schedule::CheckedGroups checked_groups(const Mesh& mesh, const std::vector<Domain>& domains) {
  schedule::CheckedGroups groups;
  std::map<std::string, mesh::Role> added;  // key: name of the role
  const auto add = [&](const std::string& name, const Domain& domain, Transfer transfer) {
    const mesh::Role role = role_of(mesh, domain, transfer);
    TESSERA_CHECK(
        added.emplace(name, role).first->second == role,
        "the compute axes of a domain are named '{}', which is the name of a role of its schedules; rename the axes",
        name);
    groups.emplace(name, schedule::CheckedGroup{role.transfer, groups_of(mesh, domain, transfer)});
  };
  for (std::size_t domain = 0; domain < domains.size(); ++domain)
    for (const Transfer transfer : kCheckedTransfers)
      add(schedule::role_name(transfer, static_cast<int>(domain)), domains[domain], transfer);
  for (const Domain& domain : domains) add(program_name(domain), domain, Transfer::program);
  add(schedule::kCastGroup, domains.front(), Transfer::casts);
  for (const Transfer transfer : {Transfer::matrices, Transfer::replica_matrices})
    add(std::string(name_of(transfer)), domains.front(), transfer);
  return groups;
}

std::set<std::string> role_names(const std::vector<Domain>& domains) {
  std::set<std::string> names{schedule::kCastGroup, std::string(name_of(Transfer::matrices)),
                              std::string(name_of(Transfer::replica_matrices))};
  for (std::size_t domain = 0; domain < domains.size(); ++domain) {
    for (const Transfer transfer : kCheckedTransfers)
      names.insert(schedule::role_name(transfer, static_cast<int>(domain)));
    names.insert(program_name(domains[domain]));
  }
  return names;
}

}  // namespace tessera::shard
