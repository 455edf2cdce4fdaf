// An oracle for tests of the checker. It executes small schedules and tracks the contents of all bytes. It runs the
// operations of the lanes in every order that the waits allow, or in random orders if there are too many. The oracle
// depends on schedule.h and not on the checker. A wait for work that the host has not enqueued yet has no effect, as on
// a GPU.
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
  none,         // only waits
  fill,         // gather: begins to write the bytes of the residency `item`
  filled,       // gather: ends the write; the bytes equal the current values of the shards
  read_weight,  // compute: a consume or release event reads `version` of `parameter` from residency `item`
  unpack,       // compute: begins to write the unpacked bytes of the residency `item`
  unpacked,     // compute: ends the write; the bytes equal the packed bytes, or the shards of weights that are not
                // gathered
  end_packed,   // compute: poisons the packed bytes of the residency `item`
  end_weights,  // compute: poisons the bytes that the residency `item` used
  copy,         // compute: begins to write the columnwise copies `item`
  copied,       // compute: ends the write; the bytes are copies of the gathered weights of residency `version`, or of
                // the shards of weights that stay in place
  read_copy,  // compute: a consume or release event of a backward pass reads `version` of `parameter` from copy `item`
  end_copy,   // compute: poisons the bytes of the columnwise copies `item`
  update,     // compute: begins to write the shard of `parameter`
  updated,    // compute: ends the write; the shard has `version`
  clear,      // compute: clears the staging of the reduction `item`
  produce,    // compute: adds contribution number `version` of `parameter` to the staging of the reduction `item`
  exchange,   // exchange: reads the staging of the reduction `item` and writes its scratch
  read_grad,  // sum: reads main_grad of the members of the reduction `item`
  add,        // sum: adds the scratch to main_grad
  read_sum,   // dp: reads main_grad of the members of the reduction `item`
  sum_replicas,  // dp: writes the sum of main_grad over replicas
  end_staging,   // compute: poisons the staging of the reduction `item`
  optimize,      // compute: reads every main_grad, which must be complete
  fail,          // the schedule cannot be executed; the reason is `why`
};

struct Operation {
  Action action = Action::none;
  int item = -1, parameter = -1, version = 0;
  std::vector<std::pair<int, int>> waits;  // pairs of a lane and the number of its operations that must be done
  std::string why;
};

// The operations of each lane, in order.
struct Program {
  std::vector<std::vector<Operation>> lanes;
  std::vector<std::uint64_t> contributions;  // index: parameter; one bit for each of its produce events in a step
};

// Returns the operations of consecutive steps. The optimizer's events follow step i if publishes[i] is true.
Program compile(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                const std::vector<bool>& publishes);

struct Outcome {
  std::string wrong;        // description of an error; empty if all tried orders are correct
  std::size_t states = 0;   // number of visited states
  bool exhaustive = false;  // whether every order was tried, or an error was found
};

// Visits up to `max_states` states of all possible orders. If there are more states, also tries random orders from
// `seed`.
Outcome execute(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                std::size_t max_states, std::uint64_t seed);

}  // namespace tessera::schedule::oracle
