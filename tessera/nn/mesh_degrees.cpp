#include "tessera/nn/mesh_degrees.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/runtime/program.h"

namespace tessera::nn {

void check_expert_degrees(const MeshDegrees& degrees) {
  const auto [etp, ep, egtp] = *degrees.experts;
  for (const auto& [name, degree] : {std::pair{"etp", etp}, {"ep", ep}, {"egtp", egtp}})
    if (degree < 1) throw InputError("--{}: got {}, expected at least 1", name, degree);
  const std::int64_t replica = static_cast<std::int64_t>(degrees.tp) * degrees.gtp;
  const std::int64_t group = static_cast<std::int64_t>(etp) * ep * egtp;
  if (replica % group != 0)
    throw InputError(
        "--etp {} * --ep {} * --egtp {} = {}, expected a divisor of --tp {} * --gtp {} = {}: the ranks of an expert "
        "belong to one replica",
        etp, ep, egtp, group, degrees.tp, degrees.gtp, replica);
  if (degrees.tp % etp != 0) throw InputError("--etp: got {}, expected a divisor of --tp {}", etp, degrees.tp);
  if (etp * ep % degrees.tp != 0)
    throw InputError("--etp {} * --ep {} = {}, expected a multiple of --tp {}, such as --etp {}", etp, ep, etp * ep,
                     degrees.tp, degrees.tp / std::gcd(degrees.tp, ep));
}

shard::RankLayout rank_layout(const MeshDegrees& degrees) {
  const mesh::Grid dense{{"tp", degrees.tp}, {"gtp", degrees.gtp}, {"dp", degrees.dp}};
  shard::RankLayout layout{.mesh = mesh::Mesh({dense}, mesh::live_places(dense, degrees.unused)),
                           .domains = {{.compute = {"tp"}, .storage = {"gtp"}, .duplicates = {}, .replicas = {"dp"}}}};
  if (!degrees.experts) return layout;
  check_expert_degrees(degrees);
  const auto [etp, ep, egtp] = *degrees.experts;
  const mesh::Grid experts{{"etp", etp}, {"ep", ep}, {"egtp", egtp}, {"edp", degrees.edp()}, {"dp", degrees.dp}};
  layout.mesh = mesh::Mesh({dense, experts}, mesh::live_places(dense, degrees.unused));
  layout.domains.push_back({.compute = {"etp", "ep"}, .storage = {"egtp"}, .duplicates = {"edp"}, .replicas = {"dp"}});
  return layout;
}

ExpertPlace expert_place(const runtime::Program& program) {
  const std::vector<shard::AxisPlace>& axes = program.compute_group(kExpertDomain).axes;
  return {.etp = axes[0], .ep = axes[1]};
}

}  // namespace tessera::nn
