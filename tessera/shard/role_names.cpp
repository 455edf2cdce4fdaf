#include "tessera/shard/role_names.h"

namespace tessera::shard {

std::set<std::string> role_names(const std::vector<Domain>& domains) {
  std::set<std::string> names{schedule::kCastGroup};
  for (std::size_t domain = 0; domain < domains.size(); ++domain) {
    for (const auto& [hop, via] : kHops) names.insert(schedule::role_name(hop, static_cast<int>(domain)));
    names.insert(program_name(domains[domain]));
  }
  return names;
}

}  // namespace tessera::shard
