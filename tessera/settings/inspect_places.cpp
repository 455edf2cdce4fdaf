#include "tessera/settings/inspect_places.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/settings/places.h"

namespace tessera::settings {

using nlohmann::ordered_json;

ordered_json inspect_places(const ResolvedRun& run) {
  const PlaceMap &unused = run.mesh().unused, &dead = run->mesh.unused.dead;
  const auto slots_of = [](const PlaceMap& slots, const TpGroup& group) {
    const auto found = slots.find(group);
    return found == slots.end() ? std::vector<int>() : found->second;
  };
  ordered_json places = ordered_json::array();
  for (int dp = 0; dp < run.degrees().dp; ++dp)
    for (int gtp = 0; gtp < run.degrees().gtp; ++gtp) {
      const TpGroup group{.dp = dp, .gtp = gtp};
      const std::vector<int> dead_here = slots_of(dead, group), unused_here = slots_of(unused, group);
      std::vector<int> retired;
      std::ranges::set_difference(unused_here, dead_here, std::back_inserter(retired));
      places.push_back({{"group", fmt::format("dp{}.gtp{}", dp, gtp)},
                        {"active", active_slots(unused, group, run.degrees().tp)},
                        {"dead", dead_here},
                        {"retired", retired}});
    }
  return places;
}

std::string places_text(const ordered_json& places) {
  const auto list = [](const ordered_json& slots) {
    const auto numbers = slots.get<std::vector<int>>();
    return numbers.empty() ? std::string("-") : fmt::format("{}", fmt::join(numbers, " "));
  };
  std::string text =
      fmt::format("\ntp slots by tp group\n  {:<14} {:<24} {:<16} {}\n", "group", "active", "dead", "retired");
  for (const ordered_json& place : places)
    text += fmt::format("  {:<14} {:<24} {:<16} {}\n", place["group"].get<std::string>(), list(place["active"]),
                        list(place["dead"]), list(place["retired"]));
  return text;
}

}  // namespace tessera::settings
