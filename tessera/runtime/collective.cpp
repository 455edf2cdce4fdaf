#include "tessera/runtime/collective.h"

#include <numeric>

#include "tessera/comm/operation.h"
#include "tessera/shard/parameter.h"

namespace tessera::runtime {

CollectiveTraffic traffic_of(const ProgramCollective& collective, const shard::ComputeGroup& group) {
  const std::int64_t all = shard::bytes_of(
      std::accumulate(collective.counts.begin(), collective.counts.end(), std::int64_t{0}), collective.type);
  const auto part_of = [&](int rank) {
    return shard::bytes_of(collective.counts[static_cast<std::size_t>(rank)], collective.type);
  };
  const bool has_peers = collective.piece < group.size;  // false: a piece of places without a rank
  const auto [to, from] = has_peers ? piece_peers(collective.piece, group.rank, group.size) : PiecePeers{};
  switch (collective.kind) {
    case ProgramCollectiveKind::all_gather:
      return {.op = "all_gather",
              .given = part_of(group.rank),
              .received = all - part_of(group.rank),
              .format = collective.format};
    case ProgramCollectiveKind::gather_piece:
      return {.op = schedule::piece_op(collective.is_for_wgrad ? schedule::kWgradGather : schedule::kGather,
                                       collective.piece),
              .given = has_peers ? part_of(group.rank) : 0,
              .received = has_peers ? part_of(from) : 0,
              .stored = all,
              .format = collective.format};
    case ProgramCollectiveKind::scatter_piece:
      return {.op = schedule::piece_op(schedule::kScatter, collective.piece),
              .given = has_peers ? part_of(to) : 0,
              .received = has_peers ? part_of(group.rank) : 0,
              .stored = has_peers ? part_of(group.rank) : 0};
    case ProgramCollectiveKind::reduce_scatter:
      return {.op = "reduce_scatter", .given = all, .received = (group.size - 1) * part_of(group.rank)};
    case ProgramCollectiveKind::all_reduce_sum:
      return {.op = "all_reduce sum", .given = all, .received = comm::all_reduce_received(all, group.size)};
    case ProgramCollectiveKind::all_reduce_max:
      return {.op = "all_reduce max", .given = all, .received = comm::all_reduce_received(all, group.size)};
  }
  return {};
}

}  // namespace tessera::runtime
