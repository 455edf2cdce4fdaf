// What a parameter weighs on its way, for the planner: pure, from layouts alone.
#pragma once
#include "tessera/shard/parameter.h"
#include "tessera/shard/schedule.h"

namespace tessera::shard {

// The tp degree is spec.compute.size(); layouts are layouts_of(spec, cuts). Bytes are the greatest over the tp ranks,
// so that every rank plans the same schedule.
ParameterSize size_of(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                      const Cuts& cuts);

// Received by a rank in one exchange, from layouts and cuts as above.
std::int64_t exchange_bytes(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                            const Cuts& cuts, int tp_rank, int gtp_rank);

}  // namespace tessera::shard
