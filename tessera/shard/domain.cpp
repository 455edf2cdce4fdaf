#include "tessera/shard/domain.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

using mesh::Axes, mesh::Mesh;

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

// Returns the number of ranks that store a compute part, by replica. Empty if the mesh has no dead places.
std::vector<int> parts_by_replica(const Mesh& mesh, const Domain& domain) {
  if (!mesh.has_dead_places()) return {};
  std::vector<int> parts(static_cast<std::size_t>(mesh.size(domain.replicas)), 0);
  for (const std::vector<int>& group : mesh.groups(domain.storage)) {
    const int rank = group.front(), size = static_cast<int>(group.size());
    int& known = parts[static_cast<std::size_t>(mesh.coordinate(rank, domain.replicas))];
    TESSERA_CHECK(
        known == 0 || known == size,
        "mesh: in one replica {} ranks store a part of a weight and {} ranks another part, expected equal numbers",
        known, size);
    known = size;
  }
  for (std::size_t replica = 0; replica < parts.size(); ++replica)
    TESSERA_CHECK(parts[replica] > 0, "mesh: all ranks of replica {} are dead", replica);
  return parts;
}

}  // namespace

int Cuts::max_parts() const {
  return parts_by_replica.empty() ? parts : std::ranges::max(parts_by_replica);
}

Cuts cuts_of(const Mesh& mesh, const Domain& domain, int rank) {
  check_axes(mesh, domain);
  const int compute = mesh.size(domain.compute);
  for (const std::vector<int>& group : mesh.groups(domain.compute))
    TESSERA_CHECK(static_cast<int>(group.size()) == compute,
                  "mesh: {} ranks use a weight of rank {}, expected {}: dead places among them are not supported",
                  group.size(), group.front(), compute);
  Cuts cuts{.parts = static_cast<int>(mesh.group_of(rank, domain.storage).size()),
            .replicas = mesh.size(domain.replicas),
            .duplicates = mesh.size(domain.duplicates),
            .parts_by_replica = parts_by_replica(mesh, domain)};
  for (const std::vector<int>& group : mesh.groups(together(domain.storage, domain.duplicates))) {
    const int parts = cuts.parts_of(mesh.coordinate(group.front(), domain.replicas));
    TESSERA_CHECK(static_cast<int>(group.size()) == parts * cuts.duplicates,
                  "mesh: {} ranks add gradients of a part, expected {} parts in {} duplicates", group.size(), parts,
                  cuts.duplicates);
  }
  return cuts;
}

Place place_of(const Mesh& mesh, const Domain& domain, int rank) {
  return {.compute = place_in(mesh.group_of(rank, domain.compute), rank),
          .part = place_in(mesh.group_of(rank, domain.storage), rank),
          .replica = mesh.coordinate(rank, domain.replicas),
          .duplicate = mesh.coordinate(rank, domain.duplicates)};
}

mesh::Role role_of(const Mesh& mesh, const Domain& domain, Via via) {
  using enum mesh::Purpose;
  switch (via) {
    case Via::gather:
      return {gather, domain.storage};
    case Via::gather_compute:
      return {gather, domain.compute};
    case Via::demand:
      return {demand, domain.storage};
    case Via::rows:
      return {rows, domain.storage};
    case Via::reduce_compute:
      return {reduce, domain.compute};
    case Via::reduce:
      return {reduce, together(domain.storage, domain.duplicates)};
    case Via::replicas:
      if (parts_by_replica(mesh, domain).empty()) return {replicas, domain.replicas};
      return {replicas, together(domain.storage, domain.replicas)};
  }
  return {};
}

RunRoles run_roles(const Mesh& mesh, const Domain& first) {
  using enum mesh::Purpose;
  const Axes all = mesh.all_axes();
  return {.losses = {losses, together(first.storage, first.replicas)},
          .norm = {norm, all},
          .world = {agreement, all},
          .casts = {casts, all}};
}

std::vector<int> classes_of(const Mesh& mesh, const std::vector<Domain>& domains) {
  std::vector<int> classes(static_cast<std::size_t>(mesh.world_size()), 0);
  if (!mesh.has_dead_places()) return classes;
  std::map<std::vector<int>, int> known;  // maps the number of ranks that store a part, for each domain, to the class
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<int> parts;
    for (const Domain& domain : domains) parts.push_back(static_cast<int>(mesh.group_of(rank, domain.storage).size()));
    classes[static_cast<std::size_t>(rank)] =
        known.try_emplace(std::move(parts), static_cast<int>(known.size())).first->second;
  }
  return classes;
}

ComputeGroup compute_group_of(const Mesh& mesh, const Domain& domain, int rank) {
  const std::vector<int> group = mesh.group_of(rank, domain.compute);
  return {
      .rank = place_in(group, rank), .size = static_cast<int>(group.size()), .nominal_size = mesh.size(domain.compute)};
}

mesh::Role program_role(const Domain& domain) {
  return {mesh::Purpose::program, domain.compute};
}

std::string program_name(const Domain& domain) {
  return fmt::format("{}", fmt::join(domain.compute, "-"));
}

std::vector<schedule::DomainLanes> lanes_of_hops(const Mesh& mesh, const std::vector<Domain>& domains) {
  std::map<std::pair<mesh::Purpose, std::vector<std::vector<int>>>, int> numbers;
  const auto number = [&](const Domain& domain, Via via) {
    const mesh::Role role = role_of(mesh, domain, via);
    return numbers.try_emplace({role.purpose, groups_of(mesh, role)}, static_cast<int>(numbers.size())).first->second;
  };
  std::vector<schedule::DomainLanes> lanes;
  for (const Domain& domain : domains)
    lanes.push_back({.gather = number(domain, Via::gather),
                     .gather_compute = number(domain, Via::gather_compute),
                     .reduce_compute = number(domain, Via::reduce_compute),
                     .reduce = number(domain, Via::reduce),
                     .replicas = number(domain, Via::replicas)});
  return lanes;
}

schedule::RoleGroups role_groups(const Mesh& mesh, const std::vector<Domain>& domains) {
  constexpr std::array<std::pair<std::string_view, Via>, 6> hops{{{"gather", Via::gather},
                                                                  {"gather_compute", Via::gather_compute},
                                                                  {"reduce_compute", Via::reduce_compute},
                                                                  {"reduce", Via::reduce},
                                                                  {"replicas", Via::replicas},
                                                                  {schedule::kRowGroup, Via::rows}}};
  schedule::RoleGroups groups;
  std::map<std::string, mesh::Role> added;  // by name
  const auto add = [&](const std::string& name, const mesh::Role& role) {
    TESSERA_CHECK(
        added.emplace(name, role).first->second == role,
        "the compute axes of a domain are named '{}', which is the name of a role of its schedules; rename the axes",
        name);
    groups.emplace(name, schedule::RoleGroup{std::string(name_of(role.purpose)), groups_of(mesh, role)});
  };
  for (std::size_t domain = 0; domain < domains.size(); ++domain)
    for (const auto& [hop, via] : hops)
      add(schedule::role_name(hop, static_cast<int>(domain)), role_of(mesh, domains[domain], via));
  for (const Domain& domain : domains) add(program_name(domain), program_role(domain));
  add(schedule::kCastGroup, run_roles(mesh, domains.front()).casts);
  return groups;
}

}  // namespace tessera::shard
