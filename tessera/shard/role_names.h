// The names of the roles of a schedule's collectives.
#pragma once
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/shard/domain.h"

namespace tessera::shard {

// The hops of a domain, with the names from which schedule::role_name() makes the names of their roles.
inline constexpr std::array<std::pair<std::string_view, Via>, 6> kHops{{{"gather", Via::gather},
                                                                        {"gather_compute", Via::gather_compute},
                                                                        {"reduce_compute", Via::reduce_compute},
                                                                        {"reduce", Via::reduce},
                                                                        {"replicas", Via::replicas},
                                                                        {schedule::kRowGroup, Via::rows}}};

// Returns the names of the groups that role_groups() returns for the domains, without the groups.
std::set<std::string> role_names(const std::vector<Domain>& domains);

}  // namespace tessera::shard
