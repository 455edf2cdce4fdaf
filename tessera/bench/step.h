// The benchmark `step`: whole training steps on random tokens, beside what the hardware allows at best.
//
// Steps are taken as a training loop takes them: on a GPU the next one is enqueued before the host waits for the last.
// A step's time is from the end of the step before it to its own, as compute comes to them (train::StepResult). Ranks
// meet between steps only as steps make them; of each step the slowest rank's time
// counts, gathered after all of them. The batches are made before.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"
#include "tessera/train/trainer.h"

namespace tessera::bench {

struct StepBench {
  run::TrainConfig config;  // resolved; its steps are not used
  models::ModelConfigPtr model;
  int warmup = 3, steps = 10;     // the first of the warm-up is recorded and planned
  std::filesystem::path profile;  // where rank 0 writes what two more steps ran; empty: nowhere
};

// What a rank's step cannot be faster than where nothing overlaps: its products and attention calls, and copies of as
// many bytes as all else moves, on its device in the order of a step and for as long as steps run, in seconds.
struct StepLimit {
  double products = 0, attention = 0;  // measured
  double bytes = 0, copy_rate = 0;  // of all that is not one of them, and of the copies (read + write), bytes a second
  int rounds = 0;                   // whose mean these are
  double seconds() const { return products + attention + bytes / copy_rate; }
};

struct StepReport {
  double median_ms = 0, p10_ms = 0, p90_ms = 0;  // of the slowest rank's steps
  double tokens_per_second_per_rank = 0;
  double flops = 0;  // of a rank's step: 6 a parameter of the products and token, and causal attention
  // Compute waited for communication: the mean over the ranks, of the median step, and of the rank that waited least,
  // for which the others waited too.
  double exposed_comm_ms = 0, least_exposed_comm_ms = 0;
  double host_ms = 0;             // in which this rank's host enqueues a step; where its queue is full, it waits there
  std::int64_t memory_bytes = 0;  // used on the device, the greatest of any rank; 0 on a CPU
  std::int64_t tensor_bytes =
      0;  // of those, this rank's tensors at their peak, and what their allocator holds for them:
  std::int64_t tensor_cache_bytes = 0;  // activations and small things; arenas, weights and their states are outside it
  std::int64_t gather_arena_bytes = 0, reduce_arena_bytes = 0, scratch_bytes = 0;  // as the schedule has them
  double loss = 0;
  std::string transport;  // run::transport_of, and why no pushes move the weights
  std::string indirect;
  StepLimit limit;  // of the rank for which it is the longest: the others wait for it
  int ranks = 1;
};

// Collective over the world; the same result on every rank. Errors: a step was skipped, or its loss or norm is not
// finite; the same one on every rank.
StepReport measure_step(comm::World& world, const StepBench& bench);

// step_limit.cpp. The limit is that of the rank's own part of a step. Gives the memory that it needs back.
StepLimit measure_limit(const StepBench& bench, int rank, base::Device device);
double step_flops(const StepBench& bench);

std::string step_text(const StepBench& bench, const StepReport& report);
nlohmann::ordered_json step_json(const StepBench& bench, const StepReport& report);

}  // namespace tessera::bench
