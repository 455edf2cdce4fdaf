#include "tessera/runtime/collective.h"

#include <numeric>

#include "tessera/comm/operation.h"
#include "tessera/shard/parameter.h"

namespace tessera::runtime {

CollectiveTraffic traffic_of(const ProgramCollective& collective, const shard::ComputeGroup& group) {
  const std::int64_t all = shard::bytes_of(
      std::accumulate(collective.counts.begin(), collective.counts.end(), std::int64_t{0}), collective.type);
  const auto own = [&] {
    return shard::bytes_of(collective.counts[static_cast<std::size_t>(group.rank)], collective.type);
  };
  switch (collective.kind) {
    case ProgramCollectiveKind::all_gather:
      // An all_gather of bytes sends fp8 codes.
      return {.op = "all_gather",
              .given = own(),
              .received = all - own(),
              .format = collective.type == quant::DType::u8 ? quant::Format::fp8 : quant::Format::bf16};
    case ProgramCollectiveKind::reduce_scatter:
      return {.op = "reduce_scatter", .given = all, .received = (group.size - 1) * own()};
    case ProgramCollectiveKind::all_reduce_sum:
      return {.op = "all_reduce sum", .given = all, .received = comm::all_reduce_received(all, group.size)};
    case ProgramCollectiveKind::all_reduce_max:
      return {.op = "all_reduce max", .given = all, .received = comm::all_reduce_received(all, group.size)};
  }
  return {};
}

}  // namespace tessera::runtime
