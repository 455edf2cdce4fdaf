#include "tessera/mesh/transfer.h"

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

constexpr std::array<std::string_view, kTransfers> kNames{
    "program", "gather", "gather_compute", "demand",    "rows",  "reduce_compute", "reduce",          "replicas",
    "publish", "losses", "norm",           "agreement", "casts", "matrices",       "replica_matrices"};

}  // namespace

std::string_view name_of(Transfer transfer) {
  return kNames[static_cast<std::size_t>(transfer)];
}

std::string_view title_of(Transfer transfer) {
  if (transfer == Transfer::gather_compute) return "gather over compute";
  return transfer == Transfer::reduce_compute ? "reduce over compute" : name_of(transfer);
}

std::string to_string(const Role& role) {
  return fmt::format("{} over {}", name_of(role.transfer), fmt::join(role.axes, ", "));
}

std::vector<std::vector<int>> groups_of(const Mesh& mesh, const Role& role) {
  TESSERA_CHECK(!role.axes.empty(), "the role '{}' has no axes, expected at least one", name_of(role.transfer));
  return mesh.groups(role.axes);
}

}  // namespace tessera::mesh
