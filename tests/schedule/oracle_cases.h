// Small steps, schedules and mutations of schedules, for tests. The schedules do not come from the planner, so an error
// of the planner does not affect these tests.
#pragma once
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule::oracle {

struct Case {
  std::string name;
  std::vector<ParameterSize> sizes;
  std::vector<Unit> gather_units, reduce_units;
  Trace trace;
};

// Builds a step from calls of a test.
class Recorder {
 public:
  // The numbers are the bytes of ParameterSize. A parameter with staging 0 is frozen.
  struct Parameter {
    std::string name;
    std::int64_t gathered = 0, staging = 0, unpacked = 0, columnwise = 0;
  };
  Recorder(std::string name, const std::vector<Parameter>& parameters, StepKind kind = StepKind::train);

  void microbatch() { ++microbatch_; }
  void consume(int parameter, Pass pass) { add(EventKind::consume, parameter, pass); }
  void release(int parameter, Pass pass) { add(EventKind::release, parameter, pass); }
  void use(int parameter, Pass pass) { consume(parameter, pass), release(parameter, pass); }
  // Adds a consume event, a produce event unless the parameter is frozen, and a release event.
  void backward(int parameter);
  void produce(int parameter) { add(EventKind::produce, parameter, Pass::backward); }
  void publish(int parameter);
  // Adds the all-reduce of the amaxes of a bucket with `weights` weights. Call this function before the publish events
  // of the bucket.
  void amaxes(int weights);
  // Returns the case. If `units` is empty, each parameter is a separate unit.
  Case take(std::vector<Unit> units = {});

 private:
  void add(EventKind kind, int parameter, Pass pass);

  Case made_;
  StepKind kind_;
  int microbatch_ = -1;
  std::map<std::tuple<EventKind, int, Pass, int>, int> happened_;  // number of events so far with these fields
};

// Returns cases with several microbatches, tied weights, a layer used twice, a frozen weight, recompute, coalesced
// neighbours, one microbatch's backward inside the next microbatch's forward, delayed weight gradients, unpacked
// weights, columnwise copies, and an evaluation.
std::vector<Case> cases();
// Returns cases with 2 or 3 domains. Successive weights belong to successive domains. In some cases a domain has no
// weight.
std::vector<Case> cases_of_domains();

// Returns a step whose microbatches have a forward and a backward pass over `layers` layers. Layer i has bytes[i mod
// bytes.size()] bytes.
Case mirrored_layers(int layers, int microbatches, const std::vector<std::int64_t>& bytes);

// Returns a random correct schedule of the case. Residencies, prefetches, offsets and finishes are random.
Schedule random_schedule(const Case& made, std::mt19937_64& random);

enum class Mutation {
  drop_wait_for_free,
  shorten_wait_for_free,
  wait_later,
  swap_gather_offsets,
  swap_reduce_offsets,
  gather_earlier,
  gather_later,
  reuse_weights_early,
  reuse_staging_early,
  end_weights_earlier,
  reduce_earlier,
  staging_later,
  finish_earlier,
  finish_later,
  lose_finish,
  lose_reduction,
  repeat_reduction,
  flip_replicas,
  lose_residency,
  swap_units,
  wait_earlier,
  swap_stages,
  swap_unpacked_offsets,
  reuse_unpacked_early,
  lose_scratch_wait,
  reuse_scratch_early,
  copy_later,
  end_copy_earlier,
  swap_copy_offsets,
  reuse_copy_early,
  lose_copy,
  repeat_copy,
};
inline constexpr int kMutations = static_cast<int>(Mutation::repeat_copy) + 1;
std::string name_of(Mutation mutation);

// Returns the schedule with one random mutation of this kind, or nullopt if the mutation cannot change the schedule.
std::optional<Schedule> mutate(const Case& made, const Schedule& schedule, Mutation mutation, std::mt19937_64& random);

}  // namespace tessera::schedule::oracle
