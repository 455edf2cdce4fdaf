#include "tessera/models/experts_config.h"

#include "tessera/models/config_fields.h"

namespace tessera::models {

void check_experts(const ExpertsConfig& experts, const Fields& fields) {
  if (experts.per_token > experts.count)
    fields.fail("num_experts_per_tok", "at most the number of experts, " + std::to_string(experts.count));
}

}  // namespace tessera::models
