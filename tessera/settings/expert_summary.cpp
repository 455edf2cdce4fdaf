#include "tessera/settings/expert_summary.h"

#include "tessera/ops/router/selection.h"

namespace tessera::settings {

ExpertSummary expert_summary(const TrainConfig& config, const models::ModelSizes& sizes, double room,
                             std::int64_t padded_products) {
  const std::int64_t ranks = config.etp * config.ep, readers = ranks / config.tp;
  const ops::LocalExperts most{
      .first = 0, .count = (sizes.num_experts + config.ep - 1) / config.ep, .all = sizes.num_experts};
  return {.room_rows =
              ops::allocated_rows(readers * config.micro_batch * config.seq_len, sizes.experts_per_token, most, room),
          .transport = ranks > 1 ? name_of(config.backend) : "",
          .padded_products = padded_products};
}

void add_expert_summary(const ExpertSummary& summary, nlohmann::ordered_json& json) {
  json["expert_room_rows"] = summary.room_rows;
  if (!summary.transport.empty()) json["expert_transport"] = summary.transport;
  json["padded_products"] = summary.padded_products;
}

}  // namespace tessera::settings
