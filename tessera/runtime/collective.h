// A collective of the program: what a layer issues, its handle, and the traffic that it causes.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "tessera/base/fence.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/domain.h"

namespace tessera::runtime {

enum class ProgramCollectiveKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce_sum,
  all_reduce_max,
  // One piece of an all_gather or of the exchange before a sum: each rank r sends to rank r + `piece` of the group.
  gather_piece,   // the part of the sender; piece 1 also copies this rank's own part to `out`
  scatter_piece,  // the sender's contribution to the part of the receiver
};

// Runs over the compute ranks of a domain; each of these ranks issues the collective.
struct ProgramCollective {
  ProgramCollectiveKind kind = ProgramCollectiveKind::all_reduce_sum;
  const void* in = nullptr;  // not used by an all_reduce, which works in place
  // Memory of the device; `in` and `out` must stay valid until the wait. All parts, in rank order; for a reduce_scatter
  // and a scatter_piece this rank's part.
  void* out = nullptr;
  // Elements of each rank's part; for an all_reduce one number, the elements of the buffer.
  std::span<const std::int64_t> counts;
  quant::DType type = quant::DType::fp32;
  schedule::Pass pass = schedule::Pass::forward;
  int domain = 0;           // 0: the domain of dense weights, whose ranks also exchange activations and samples
  bool is_recorded = true;  // false: no event, for a collective that later steps skip
  int piece = 0;            // distance to the receiver of a piece, 1 to the number of ranks - 1
};
constexpr bool is_piece(ProgramCollectiveKind kind) {
  return kind == ProgramCollectiveKind::gather_piece || kind == ProgramCollectiveKind::scatter_piece;
}
// The peers of a piece.
struct PiecePeers {
  int to = 0, from = 0;  // ranks of the group
};
constexpr PiecePeers piece_peers(int piece, int rank, int size) {
  return {.to = (rank + piece) % size, .from = (rank - piece + size) % size};
}

// A collective in flight.
struct Issued {
  base::Fence done;
  int event = -1;  // index in the step's trace; -1: not recorded
};

// The name of a collective in events, and its bytes on one rank.
struct CollectiveTraffic {
  std::string op;
  std::int64_t given = 0;     // bytes that this rank contributes; the bytes of the event
  std::int64_t received = 0;  // bytes that this rank receives from others
  quant::Format format = quant::Format::bf16;
};
// Returns the traffic on the rank that `group` describes.
CollectiveTraffic traffic_of(const ProgramCollective& collective, const shard::ComputeGroup& group);

}  // namespace tessera::runtime
