// A sharded parameter: data only. Its name, logical shape, layouts, and this rank's buffers.
//
// Three layouts say everything (docs/layouts.md):
//   compute  over the tp ranks: the part each needs while an operation runs; parts may overlap
//   home     over the tp ranks: the same with every element on one tp rank only (whole on each for replicated
//   parameters) storage  over tp x gtp ranks (rank tp + T * gtp): home cut by rows over gtp; what lasts between uses
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/base/dtype.h"
#include "tessera/base/fence.h"
#include "tessera/layout/layout.h"

namespace tessera::shard {

// What a model says about a parameter.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> dims;  // logical
  layout::Layout compute;          // over the tp ranks
  // Cut over gtp (matrices), or kept whole on every rank (norms).
  bool sharded = true;
  // Replicated over tp while each tp rank computes only a part of its gradient (sequence parallelism): parts are added.
  bool partial_gradient = false;
  bool trainable = true;
  bool decay = true;                // weight decay applies
  double initial_deviation = 0.02;  // normal(0, deviation); 0: filled with initial_value
  double initial_value = 0;
};

// The types a parameter's buffers have. accumulator: of staging, main_grad, master and moments; wire: of the gradient
// parts that travel between gtp ranks.
struct ParameterTypes {
  base::DType model = base::DType::fp32;
  base::DType accumulator = base::DType::fp32;
  base::DType wire = base::DType::fp32;
};

struct ShardedParameter {
  ParameterSpec spec;
  ParameterTypes types;
  layout::Layout home, storage;
  layout::LocalLayout local_compute, local_home, local_storage;  // this rank's parts

  base::Buffer weight;     // local_storage.size elements of types.model: what travels
  base::Buffer master;     // accumulator type; empty when it is the weight itself
  base::Buffer main_grad;  // accumulator type; empty for a frozen parameter
  std::int64_t version = 0;
  base::Fence published;           // the newest version is written when this is done
  bool main_grad_written = false;  // in this step: the first produced block writes, later ones add

  std::int64_t shard_elements() const { return local_storage.size; }
  bool has_master() const { return types.model != types.accumulator; }
  void* master_data() { return has_master() ? master.data() : weight.data(); }
};

// What follows from a compute layout: where the parameter is at home, and what each rank of tp x gtp keeps.
struct ParameterLayouts {
  layout::Layout home, storage;
};
// Errors: a layout of another shape than dims, or one that leaves an element out.
ParameterLayouts layouts_of(const ParameterSpec& spec, int gtp_size);

// Builds layouts and buffers (weight and main_grad zero) for the rank at (tp_rank, gtp_rank). Errors: a compute layout
// whose size is not the tp degree, whose local parts are no dense matrices, or that leaves an element out.
ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, int tp_rank, int gtp_rank,
                                int gtp_size);

}  // namespace tessera::shard
