// The memory, the transport and the padding of experts in a run, for summary.json and `bench step --json`.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tessera/settings/resolved_run.h"

namespace tessera::settings {

struct ExpertSummary {
  // Rows of experts for which a rank has memory; of the rank with the most experts.
  std::int64_t room_rows = 0;
  // The backend that moves tokens to the owners of their experts and back. "": each rank has all of its experts.
  std::string_view transport;
  // Products of experts in a step whose operands a rank pads (ops/grouped/grouped.h).
  std::int64_t padded_products = 0;
};

// run: of a model with experts. room: Trainer::expert_room(). padded_products: of the last step.
ExpertSummary expert_summary(const ResolvedRun& run, double room, std::int64_t padded_products);
// Adds the keys expert_room_rows, padded_products, and expert_transport if it is not "".
void add_expert_summary(const ExpertSummary& summary, nlohmann::ordered_json& json);

}  // namespace tessera::settings
