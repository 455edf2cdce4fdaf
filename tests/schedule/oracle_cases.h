// Small steps and schedules of them for tests, and ways to spoil these. Made here and not by the planner, so that a
// wrong idea in one place does not hide in the other.
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

// Records a step by hand.
class Recorder {
 public:
  // names[i]: parameter i, its gathered and staging bytes; staging 0: frozen. unpacked: bytes that it is unpacked to.
  struct Parameter {
    std::string name;
    std::int64_t gathered = 0, staging = 0, unpacked = 0;
  };
  Recorder(std::string name, const std::vector<Parameter>& parameters, StepKind kind = StepKind::train);

  void microbatch() { ++microbatch_; }
  void consume(int parameter, Pass pass) { add(EventKind::consume, parameter, pass); }
  void release(int parameter, Pass pass) { add(EventKind::release, parameter, pass); }
  void use(int parameter, Pass pass) { consume(parameter, pass), release(parameter, pass); }
  // Consume, produce unless frozen, release.
  void backward(int parameter);
  void produce(int parameter) { add(EventKind::produce, parameter, Pass::backward); }
  void publish(int parameter);
  // The message of the amaxes of a bucket of so many weights, before its publishes.
  void amaxes(int weights);
  // Each parameter a unit of its own where `units` is empty.
  Case take(std::vector<Unit> units = {});

 private:
  void add(EventKind kind, int parameter, Pass pass);

  Case made_;
  StepKind kind_;
  int microbatch_ = -1;
  std::map<std::tuple<EventKind, int, Pass, int>, int> happened_;  // how often, by microbatch, pass and parameter
};

// Several microbatches, ties, a layer used twice, a frozen weight, recompute, coalesced neighbours, one microbatch's
// backward inside the next one's forward, delayed weight gradients, weights that are unpacked, an evaluation.
std::vector<Case> cases();
// Some of them with weights of 2 and 3 domains by turns; a domain may have no weight.
std::vector<Case> cases_of_domains();

// Layers of these sizes in turn, forward and backward in each microbatch.
Case mirrored_layers(int layers, int microbatches, const std::vector<std::int64_t>& bytes);

// A schedule of the case: random stays, prefetches, offsets and finishes, right by construction.
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
};
inline constexpr int kMutations = static_cast<int>(Mutation::reuse_scratch_early) + 1;
std::string name_of(Mutation mutation);

// The schedule with one random mutation of this kind; none where it has nothing to mutate or nothing changed.
std::optional<Schedule> mutate(const Case& made, const Schedule& schedule, Mutation mutation, std::mt19937_64& random);

}  // namespace tessera::schedule::oracle
