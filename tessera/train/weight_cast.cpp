#include "tessera/train/weight_cast.h"

#include "tessera/base/error.h"

namespace tessera::train {

bool is_rounded_master(const shard::ShardedParameter& parameter) {
  return parameter.planes.size() == 1 && quant::is_floating(parameter.planes.front().spec.type);
}

void cast_planes(runtime::Runtime& runtime, std::span<const schedule::ParameterId> ids) {
  for (const schedule::ParameterId id : ids) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    TESSERA_CHECK(is_rounded_master(parameter), "parameter '{}': no cast from a master to its {} planes is known",
                  parameter.spec.name, parameter.planes.size());
    if (!parameter.has_master()) continue;
    runtime.parallel().kernels().cast(parameter.master.data(), parameter.types.accumulator, parameter.state_weight(),
                                      parameter.planes.front().spec.type, parameter.state_elements());
  }
}

}  // namespace tessera::train
