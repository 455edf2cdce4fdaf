// A collective of the program: the arguments that a layer passes, the handle of a collective in flight, and its
// traffic.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/base/fence.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/domain.h"

namespace tessera::runtime {

enum class ProgramCollectiveKind : std::uint8_t { all_gather, reduce_scatter, all_reduce_sum, all_reduce_max };

// The arguments of a collective over the compute ranks of a domain. Each of these ranks issues the collective.
struct ProgramCollective {
  ProgramCollectiveKind kind = ProgramCollectiveKind::all_reduce_sum;
  const void* in = nullptr;  // input; not used by an all_reduce, which works in place on `out`
  void* out = nullptr;       // output; `in` and `out` are device memory and must stay valid until the wait
  // By rank: the number of elements of its part. For an all_reduce: one entry, the number of elements of the buffer.
  std::span<const std::int64_t> counts;
  quant::DType type = quant::DType::fp32;
  schedule::Pass pass = schedule::Pass::forward;
  int domain = 0;           // 0: the domain of dense weights, which is also the domain of activations and samples
  bool is_recorded = true;  // false: the collective is not an event of the step, because later steps skip it
};

// A collective in flight.
struct Issued {
  base::Fence done;
  int event = -1;  // index in the step's trace; -1: not recorded
};

// The op of a collective in events, and its bytes on one rank.
struct CollectiveTraffic {
  const char* op = "";
  std::int64_t given = 0;     // bytes that this rank contributes: Event::bytes
  std::int64_t received = 0;  // bytes that this rank receives from others
  quant::Format format = quant::Format::bf16;
};
// Returns the traffic on the rank that `group` describes.
CollectiveTraffic traffic_of(const ProgramCollective& collective, const shard::ComputeGroup& group);

}  // namespace tessera::runtime
