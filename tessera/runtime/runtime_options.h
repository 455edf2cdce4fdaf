// How a program's steps are run.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/schedule/plan/plan.h"
#include "tessera/shard/format_policy.h"

namespace tessera::runtime {

struct ReplayOptions {
  bool poison = false;           // buffers are filled with NaN at the end of their intervals
  std::uint64_t delay_seed = 0;  // not 0: gathers and reductions are delayed by random times
  double longest_delay = 0.003;  // seconds
};

struct RuntimeOptions {
  bool scheduled = true;  // false: every step runs on demand
  bool zero = false;      // the optimizer's state is cut over replicas (ZeRO-1): each replica updates a part
  // By domain: the number of consecutive ranks that first add their gradients among themselves (reduction_tree.h). 1 or
  // a missing entry: sequential.
  std::vector<int> nodes = {};
  // Bytes, kMinimum or kUnlimited. Absent: the smallest budgets whose predicted step is at most 0.25 % longer than with
  // unlimited budgets.
  std::optional<std::int64_t> gather_budget, reduce_budget;
  std::int64_t coalesce_bytes = 0;  // adjacent small parameters travel as one unit of at most this size
  ReplayOptions replay;
  int departures_before_replan = 3;                  // departed steps in a row before a new schedule is made
  shard::FormatPolicy wire;                          // number formats in which matrices are stored and sent
  shard::FormatPolicy products;                      // number formats in which matrices are multiplied
  std::optional<shard::FormatPolicy> wire_backward;  // as `wire`, for backward weights; absent: `wire`
  // Returns a parameter's domain, an index into ParallelGroups::domains. Null: the domain of the spec.
  std::function<int(const shard::ParameterSpec& spec)> domain_of;
  bool pushes = true;  // GPUs of a host write to each other's arenas
};

// Returns the spec with the domain and the number formats that the options choose, for the weight and for its backward
// weight. types: the types of the run. Throws the errors of shard/format_policy.h.
shard::ParameterSpec with_options(shard::ParameterSpec spec, const shard::ParameterTypes& types,
                                  const RuntimeOptions& options);
// Returns the cuts of domain number `domain` (shard::cuts_of) with the fields that depend on options set.
shard::Cuts with_options(shard::Cuts cuts, const RuntimeOptions& options, std::size_t domain);

}  // namespace tessera::runtime
