// The places of a mesh with unused places, for `tessera inspect layout` and the summary of a run.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/run/config/config.h"

namespace tessera::run {

// Returns [{"group", "active", "dead", "retired"}], the tp slots of each tp group ("dp0.gtp1"). Dead slots are those of
// --dead, retired slots are other slots without a rank. `config`: resolved, with unused places (has_unused_places).
nlohmann::ordered_json inspect_places(const TrainConfig& config);
// Returns a line for each tp group.
std::string places_text(const nlohmann::ordered_json& places);

}  // namespace tessera::run
