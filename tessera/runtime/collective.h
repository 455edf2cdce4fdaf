// A collective of the program: what a layer asks its ranks for, and what it gets while that is under way.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/base/fence.h"
#include "tessera/quant/dtype.h"
#include "tessera/schedule/events.h"

namespace tessera::runtime {

enum class ProgramCollectiveKind : std::uint8_t { all_gather, reduce_scatter, all_reduce_sum, all_reduce_max };

// A collective of the program over the compute ranks of a domain; each of them issues it.
struct ProgramCollective {
  ProgramCollectiveKind kind = ProgramCollectiveKind::all_reduce_sum;
  const void* in = nullptr;              // not of an all_reduce, which is in place
  void* out = nullptr;                   // memory of the device; both stay until the wait
  std::span<const std::int64_t> counts;  // elements of each rank's part; of an all_reduce one number, the whole's
  quant::DType type = quant::DType::fp32;
  schedule::Pass pass = schedule::Pass::forward;
  int domain = 0;           // 0: the dense domain, of activations and samples
  bool is_recorded = true;  // false: of a step that does once what no schedule foresees
};

// A collective under way.
struct Issued {
  base::Fence done;
  int event = -1;  // its place in the step's trace; -1: it is not recorded
};

}  // namespace tessera::runtime
