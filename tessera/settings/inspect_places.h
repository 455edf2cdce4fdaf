// Lists the unused places of a mesh, for `tessera inspect layout` and the summary of a run.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/settings/resolved_run.h"

namespace tessera::settings {

// Returns [{"group", "active", "dead", "retired"}] with one entry for each tp group, such as "dp0.gtp1". Each entry
// lists the group's tp slots. "dead" lists the slots that --dead names. "retired" lists the other slots without a rank.
// Some places of the run are unused.
nlohmann::ordered_json inspect_places(const ResolvedRun& run);
// Returns one line of text for each tp group.
std::string places_text(const nlohmann::ordered_json& places);

}  // namespace tessera::settings
