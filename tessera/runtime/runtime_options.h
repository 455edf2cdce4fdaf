// Options of a runtime: how it executes the steps of a program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/schedule/plan/plan.h"
#include "tessera/shard/formats/format_policy.h"

namespace tessera::runtime {

struct ReplayOptions {
  bool poison = false;           // whether buffers are filled with NaN at the end of their intervals
  std::uint64_t delay_seed = 0;  // seed of random delays of gathers and reductions; 0: no delays
  double longest_delay = 0.003;  // longest random delay, in seconds
};

struct RuntimeOptions {
  bool scheduled = true;  // false: every step runs on demand
  // Whether the optimizer's state is sharded over replicas (ZeRO-1). Each replica then updates a part of the weights.
  bool zero = false;
  // Whether every training step has one microbatch. If true, layers write some gradients directly to main_grad
  // (shard::writes_main_grad).
  bool one_microbatch = false;
  // Whether fp32 masters are stored as 16 bits beside their bf16 weights, where that is possible
  // (shard::splits_master).
  bool split_masters = false;
  // By domain: the number of consecutive ranks that add their gradients among themselves first (reduction_tree.h). 1 or
  // a missing entry means sequential addition.
  std::vector<int> nodes = {};
  // Sizes of the arenas: bytes, kMinimum or kUnlimited. An absent budget is chosen: the smallest budget whose predicted
  // step is at most 0.25 % longer than with an unlimited budget.
  std::optional<std::int64_t> gather_budget, reduce_budget;
  std::int64_t coalesce_bytes = 0;  // adjacent small parameters travel as one unit of at most this size
  ReplayOptions replay;
  int departures_before_replan = 3;                  // departed steps in a row before a new schedule is made
  shard::FormatPolicy wire;                          // number formats in which matrices are stored and sent
  shard::FormatPolicy products;                      // number formats in which matrices are multiplied
  std::optional<shard::FormatPolicy> wire_backward;  // number formats of backward weights; absent: those of `wire`
  // Returns the domain of a parameter, an index into ParallelGroups::domains. If the function is empty, the domain is
  // spec.domain.
  std::function<int(const shard::ParameterSpec& spec)> domain_of;
  bool pushes = true;  // whether GPUs of a host write to each other's arenas
};

// Returns the spec with the domain, the number formats and the backward format that the options choose. `types` are the
// types of the run. Throws the errors of shard/formats/format_policy.h.
shard::ParameterSpec with_options(shard::ParameterSpec spec, const shard::ParameterTypes& types,
                                  const RuntimeOptions& options);
// Returns the cuts of domain number `domain` with the fields that depend on the options (such as zero and node). `cuts`
// is a result of shard::cuts_of.
shard::Cuts with_options(shard::Cuts cuts, const RuntimeOptions& options, std::size_t domain);

}  // namespace tessera::runtime
