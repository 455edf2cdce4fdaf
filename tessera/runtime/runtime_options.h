// How a program's steps are run.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "tessera/runtime/replay.h"
#include "tessera/shard/format_policy.h"

namespace tessera::runtime {

struct RuntimeOptions {
  bool scheduled = true;  // false: every step runs on demand
  bool zero = false;      // the optimizer's state is cut over replicas (ZeRO-1): each replica updates a part
  int node = 1;           // consecutive ranks whose gradients are added first (reduction_tree.h); 1: sequential
  // Bytes, kMinimum, kUnlimited; absent: the smallest with which a step is predicted to take at most 0.25 % longer than
  // with unlimited ones.
  std::optional<std::int64_t> gather_budget, reduce_budget;
  std::int64_t coalesce_bytes = 0;  // neighbours travel together up to this
  ReplayOptions replay;
  int patience = 3;              // steps in a row that leave their schedule before a new one is made
  shard::FormatPolicy wire;      // number formats of matrices as they are stored and sent ...
  shard::FormatPolicy products;  // ... and as they are multiplied
  std::optional<shard::FormatPolicy> wire_backward;  // as `wire`, of what backward passes read; absent: `wire`
  // What a parameter is cut over, by number in ParallelGroups::domains; null: as its spec says.
  std::function<int(const shard::ParameterSpec& spec)> domain_of;
  bool pushes = true;  // GPUs of a host write to each other's arenas
};

// A parameter as the options make it of what a model says: with its domain, its number formats and those of its
// backward weight. types: the run's. Errors (InputError): those of shard/format_policy.h.
shard::ParameterSpec with_options(shard::ParameterSpec spec, const shard::ParameterTypes& types,
                                  const RuntimeOptions& options);
// Returns the cuts of a domain (shard::cuts_of) with the fields that depend on options set.
shard::Cuts with_options(shard::Cuts cuts, const RuntimeOptions& options);

}  // namespace tessera::runtime
