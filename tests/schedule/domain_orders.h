// Schedules of several domains. Each domain has its own gather lane, and all domains share one gather arena. The
// functions find gathers that may overwrite bytes while another domain still reads them.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule::domain_orders {

struct Step {
  Trace trace;
  std::vector<ParameterSize> sizes;
};

struct LayerOptions {
  int layers = 2, domains = 2, microbatches = 2;
  bool unpacked = false;  // whether weights are unpacked, to twice their gathered bytes
  bool odd = false;       // true: random sizes; false: the sizes of a decoder's projections
};

// Returns layers of four weights. The first weights belong to domain 0, and the others to the domains 1, 2, .... With
// more than four domains, some domains have no weight.
Step layers(const LayerOptions& options, std::mt19937& random);

// A gather and an earlier residency that share bytes, where no wait orders the gather after the residency. Without such
// a pair, waits of the gather's lane order every gather after every earlier use of its bytes.
struct UnorderedPair {
  int gather = 0, earlier = 0;  // index into Schedule::residencies
};
std::vector<UnorderedPair> unordered_pairs(const Schedule& schedule);
std::string to_string(const UnorderedPair& pair, const Schedule& schedule, const std::vector<ParameterSize>& sizes);

// Changes the waits of a schedule to those of a planner that assumes a single gather lane. A gather then waits only for
// the weights that it evicts. It does not wait for weights that were evicted from its bytes earlier.
Schedule with_waits_of_one_lane(const Step& step, Schedule schedule);

// Returns schedules of the step for `budgets` gather budgets, from the smallest to the largest arena.
std::vector<Schedule> plans(const Step& step, int budgets);

}  // namespace tessera::schedule::domain_orders
