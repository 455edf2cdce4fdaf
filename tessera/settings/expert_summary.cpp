#include "tessera/settings/expert_summary.h"

#include "tessera/ops/router/selection.h"

namespace tessera::settings {

ExpertSummary expert_summary(const ResolvedRun& run, double room, std::int64_t padded_products) {
  const models::ModelSizes sizes = run.model()->sizes();
  const std::int64_t ranks = run->mesh.etp * run->mesh.ep, readers = ranks / run->mesh.tp;
  const ops::LocalExperts most{
      .first = 0, .count = (sizes.num_experts + run->mesh.ep - 1) / run->mesh.ep, .all = sizes.num_experts};
  return {
      .room_rows = ops::allocated_rows(readers * run->micro_batch * run->seq_len, sizes.experts_per_token, most, room),
      .transport = ranks > 1 ? name_of(run->backend) : "",
      .padded_products = padded_products};
}

void add_expert_summary(const ExpertSummary& summary, nlohmann::ordered_json& json) {
  json["expert_room_rows"] = summary.room_rows;
  if (!summary.transport.empty()) json["expert_transport"] = summary.transport;
  json["padded_products"] = summary.padded_products;
}

}  // namespace tessera::settings
