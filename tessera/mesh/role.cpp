#include "tessera/mesh/role.h"

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::mesh {

std::string_view name_of(Purpose purpose) {
  switch (purpose) {
    case Purpose::program:
      return "program";
    case Purpose::gather:
      return "gather";
    case Purpose::reduce:
      return "reduce";
    case Purpose::demand:
      return "demand";
    case Purpose::rows:
      return "rows";
    case Purpose::replicas:
      return "replicas";
    case Purpose::losses:
      return "losses";
    case Purpose::norm:
      return "norm";
    case Purpose::agreement:
      return "agreement";
    case Purpose::casts:
      return "casts";
  }
  return "?";
}

std::string to_string(const Role& role) {
  return fmt::format("{} over {}", name_of(role.purpose), fmt::join(role.axes, ", "));
}

std::vector<std::vector<int>> groups_of(const Mesh& mesh, const Role& role) {
  TESSERA_CHECK(!role.axes.empty(), "the role '{}' has no axes, expected at least one", name_of(role.purpose));
  return mesh.groups(role.axes);
}

}  // namespace tessera::mesh
