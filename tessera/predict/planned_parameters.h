// Sizes of a model's parameters on a mesh, from layouts alone.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/shard/format_policy.h"
#include "tessera/shard/sizes.h"

namespace tessera::predict {

struct MeshDegrees {
  int tp = 1, gtp = 1, dp = 1;
  bool zero = false;  // the optimizer's state is cut over dp
  int node = 1;       // consecutive gtp ranks whose gradients are added first
  std::int64_t ranks() const { return static_cast<std::int64_t>(tp) * gtp * dp; }
};

// What the optimizer's buckets need to know of a parameter.
struct PlannedCast {
  std::int64_t elements = 0;      // logical
  bool is_encoded = false;        // stored in a number format
  bool has_tensor_scale = false;  // and its cast needs the amax of the whole weight
  bool is_fp8_product = false;    // its products have scales for whole matrices
};

struct PlannedParameter {
  schedule::ParameterSize size;       // of the rank that has most
  std::int64_t shard_elements = 0;    // the greatest of all ranks
  std::int64_t stored_bytes = 0;      // of all planes; the greatest of all ranks
  std::int64_t state_elements = 0;    // that a rank updates; the greatest of all
  std::int64_t compute_elements = 0;  // the greatest of the tp ranks
  PlannedCast cast;
  quant::Format product = quant::Format::bf16;          // format of its products
  schedule::ParameterId copy = schedule::kNoParameter;  // what backward passes read instead, if anything
  std::int64_t row_buffers = 0;  // bytes; of a table whose rows travel by index (shard/rows.h), else 0
  // Bytes received by all ranks together: in one gather, one exchange, one sum over replicas, one publish.
  std::int64_t gather_total = 0, reduce_total = 0, replica_total = 0, publish_total = 0;
};

PlannedParameter planned_parameter(const shard::ParameterSpec& spec, const shard::ParameterTypes& types,
                                   const MeshDegrees& mesh);
// By id. Blocks are alike but for their number formats: one of each kind is measured. embedding: as of
// models::ModelOptions. wire, products, backward: as of the runtime. Behind all weights come their copies for backward
// passes.
std::vector<PlannedParameter> planned_parameters(const models::ModelConfig& model, const shard::ParameterTypes& types,
                                                 const MeshDegrees& mesh, bool sequence_parallel,
                                                 const shard::RowReads& embedding = {},
                                                 const shard::FormatPolicy& wire = {},
                                                 const shard::FormatPolicy& products = {},
                                                 const std::optional<shard::FormatPolicy>& backward = {});

}  // namespace tessera::predict
