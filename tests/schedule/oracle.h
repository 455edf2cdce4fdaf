// What a schedule really does, for tests: small schedules carried out over tagged bytes with the lanes' operations in
// every order that the waits allow (or, where these are too many, in random ones). It knows schedule.h and nothing of
// the checker. A wait for what the host has not enqueued yet is no wait, as on a GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule::oracle {

// Lane 0 is compute; each domain has one lane of each kind.
enum class LaneKind : std::uint8_t { gather, exchange, sum, dp };
inline constexpr int kCompute = 0;
inline int lane_of(LaneKind kind, int domain) {
  return 1 + 4 * domain + static_cast<int>(kind);
}

enum class Action : std::uint8_t {
  none,          // a place to wait at
  fill,          // gather: its bytes are being written ...
  filled,        // ... and hold what the shards hold now
  read_weight,   // compute: a consume or a release of `parameter`, in the bytes of `item`, of `version`
  unpack,        // compute: the unpacked bytes of `item` are being written ...
  unpacked,      // ... and hold what its packed bytes hold now, or the shards where nothing is gathered
  end_packed,    // compute: poison over the packed bytes of the residency `item` ...
  end_weights,   // ... and over those that were used
  update,        // compute: the shard of `parameter` is being written ...
  updated,       // ... and has `version`
  clear,         // compute: the staging of the reduction `item` is written anew
  produce,       // compute: contribution `version` of `parameter` is added in the staging of `item`
  exchange,      // exchange: staging of `item` is read, and what arrives is in its scratch
  read_grad,     // sum: main_grad of the members of `item` is read ...
  add,           // ... and what is in the scratch is added
  read_sum,      // dp: main_grad of the members of `item` is read ...
  sum_replicas,  // ... and summed over replicas
  end_staging,   // compute: poison over the staging of `item`
  optimize,      // compute: every main_grad is read, complete
  fail,          // the schedule says nothing that can be done: `why`
};

struct Operation {
  Action action = Action::none;
  int item = -1, parameter = -1, version = 0;
  std::vector<std::pair<int, int>> waits;  // a lane has done this many operations
  std::string why;
};

// By lane, in its order.
struct Program {
  std::vector<std::vector<Operation>> lanes;
  std::vector<std::uint64_t> contributions;  // by parameter: bits of its produces in a step
};

// The steps one after the other; publishes[step]: the optimizer's publishes follow it.
Program compile(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                const std::vector<bool>& publishes);

struct Outcome {
  std::string wrong;        // empty: every order tried is right
  std::size_t states = 0;   // looked at
  bool exhaustive = false;  // every order was tried, or a wrong one found
};

// All orders while they have at most `most_states` states, then random ones from `seed`.
Outcome execute(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                std::size_t most_states, std::uint64_t seed);

}  // namespace tessera::schedule::oracle
