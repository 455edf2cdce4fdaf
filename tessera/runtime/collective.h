// A collective of the program: the arguments that a layer passes, the handle of a collective in flight, and its
// traffic.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/lanes/fence.h"
#include "tessera/comm/redistribution.h"
#include "tessera/mesh/transfer.h"
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
  // One piece of an all_gather, or of the exchange that precedes a sum. Each rank r sends to rank r + `piece` of the
  // group.
  gather_piece,   // sends the sender's part; piece 1 also copies this rank's own part to `out`
  scatter_piece,  // sends the sender's contribution to the receiver's part
};

// Why a gather for a product sends bf16 numbers, although --tp-wire-format names the format of the product.
enum class TpWireFallback : std::uint8_t {
  tiles,       // some rank's tokens do not begin at a tile of the operand by columns
  both_sides,  // the codes of the operands by rows and by columns together have more bytes
  transform,   // the columns are transformed before they are quantized
};
inline constexpr std::array<std::string_view, 3> kTpWireFallbacks{"tiles", "both_sides", "transform"};
using TpWireFallbacks = std::array<std::int64_t, kTpWireFallbacks.size()>;  // by reason: number of gathers

// The arguments of a collective over the compute ranks of a domain. Each of these ranks issues the collective.
struct ProgramCollective {
  ProgramCollectiveKind kind = ProgramCollectiveKind::all_reduce_sum;
  const void* in = nullptr;  // input; not used by an all_reduce, which works in place on `out`
  // Output: all parts in rank order. For a reduce_scatter and a scatter_piece: this rank's part. `in` and `out` are
  // device memory and must stay valid until the wait.
  void* out = nullptr;
  // By rank: the number of elements of its part. For an all_reduce: one entry, the number of elements of the buffer.
  std::span<const std::int64_t> counts;
  quant::DType type = quant::DType::fp32;
  // Number format of the activations. For codes and scales, `type` is u8. bf16: numbers in the model's type.
  quant::Format format = quant::Format::bf16;
  schedule::PassId pass;
  int domain = 0;           // 0: the domain of dense weights, which is also the domain of activations and samples
  bool is_recorded = true;  // false: the collective is not an event of the step, because later steps skip it
  // For a piece: the distance from the sender's rank to the receiver's rank, from 1 to the number of places - 1. A
  // piece of at least the number of ranks has no peers: it is recorded, and nothing is sent.
  int piece = 0;
  // For a piece: the weight whose product reads the gathered tokens or writes the scattered tokens. kNoParameter: other
  // work uses the tokens.
  schedule::ParameterId weight = schedule::kNoParameter;
  bool is_for_wgrad =
      false;  // for a gather_piece: only the product that computes the weight's gradient reads the tokens
  std::int64_t offset = -1;  // for a piece: the position of `out` in the transfer arena (TransferMemory); -1: not known
};
constexpr bool is_piece(ProgramCollectiveKind kind) {
  return kind == ProgramCollectiveKind::gather_piece || kind == ProgramCollectiveKind::scatter_piece;
}
// The ranks with which a rank exchanges a piece.
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
  // For a piece: the range of the transfer arena that holds the transfer, as in the need event.
  std::int64_t offset = -1, bytes = 0;
};

// An exchange of the optimizer for a rule of matrices (shard/matrices/matrix_plan.h).
struct MatrixExchange {
  mesh::Transfer transfer = mesh::Transfer::matrices;
  const char* op = schedule::kGatherMatricesOp;
  int ranks = 1;           // of the group
  std::int64_t bytes = 0;  // the most bytes that a rank receives
  // The elements that this rank moves, and its memory. Null in a dry run.
  const comm::Redistribution* redistribution = nullptr;
  const void* source = nullptr;
  void* target = nullptr;
  quant::DType type = quant::DType::fp32;
};

// The sum that completes a scatter.
struct ScatterSum {
  std::span<const int> ranks;  // ranks of the group in the order in which their parts are added
  schedule::PassId pass;
  schedule::ParameterId weight = schedule::kNoParameter;  // as in the scatter's pieces
};

// The op of a collective in events, and its bytes on one rank.
struct CollectiveTraffic {
  std::string op;
  std::int64_t given = 0;     // bytes that this rank contributes: Event::bytes
  std::int64_t received = 0;  // bytes that this rank receives from others
  std::int64_t stored = 0;    // for a piece: the bytes of `out`
  quant::Format format = quant::Format::bf16;
};
// Returns the traffic on the rank that `group` describes.
CollectiveTraffic traffic_of(const ProgramCollective& collective, const shard::ComputeGroup& group);

}  // namespace tessera::runtime
