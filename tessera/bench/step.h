// The benchmark `step`: whole training steps on random tokens, compared with the hardware's limit.
//
// The steps run as in a training loop: on a GPU the next step is enqueued before the host waits for the last. A step's
// time is from the end of the previous step to its own end on compute's lane (train::StepResult). The benchmark adds no
// synchronization between steps. The time of a step is that of its slowest rank; the times are gathered after all
// steps. The batches are created beforehand.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/bench/routing.h"
#include "tessera/comm/world.h"
#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"
#include "tessera/train/trainer.h"

namespace tessera::bench {

struct StepBench {
  run::TrainConfig config;  // resolved; its number of steps is not used
  models::ModelConfigPtr model;
  int warmup = 3, steps = 10;       // the first warm-up step is recorded and planned
  std::filesystem::path profile;    // where rank 0 writes a profile of two more steps; empty: no profile
  Routing routing = Routing::even;  // of a model with experts
};

// Lower bound of a rank's step time without overlap, in seconds. The limit is the measured time of the step's products
// and attention calls, and of copies of as many bytes as all other work moves. This work runs on the rank's device in
// the order of a step, and is repeated for as long as the steps run.
struct StepLimit {
  double products = 0, attention = 0;  // measured
  double bytes = 0, copy_rate = 0;     // bytes of all other work; bytes per second of the copies (read + write)
  int rounds = 0;                      // number of rounds in the mean
  double seconds() const { return products + attention + bytes / copy_rate; }
};

struct StepReport {
  double median_ms = 0, p10_ms = 0, p90_ms = 0;  // median and quantiles of the slowest rank's steps
  double tokens_per_second_per_rank = 0;
  double flops = 0;                  // model flops of a step, divided by the ranks (run/model_flops.h)
  std::optional<double> peak_flops;  // per second of a rank's processor; nullopt: not known, and so is mfu
  // Time in which compute waits for communication. exposed_comm_ms: the mean over the ranks in the median step.
  // least_exposed_comm_ms: the time of the rank that waits least; the other ranks also wait for that rank.
  double exposed_comm_ms = 0, least_exposed_comm_ms = 0;
  double host_ms = 0;             // this rank's host time to enqueue a step, including waits for a full queue
  std::int64_t memory_bytes = 0;  // bytes used on the device, the maximum over the ranks; 0 on a CPU
  std::int64_t tensor_bytes = 0;  // peak bytes of this rank's tensors
  // Bytes that the tensors' allocator holds; excludes arenas, weights and optimizer states.
  std::int64_t tensor_cache_bytes = 0;
  std::int64_t gather_arena_bytes = 0, reduce_arena_bytes = 0, scratch_bytes = 0;  // from the schedule
  double loss = 0;
  std::optional<double> expert_load;  // of the last step; set for a model with experts (routing.h)
  std::string transport;              // run::transport_of
  // Counters of this rank's last step (runtime/watch/statistics.h), and run::tp_transport_of.
  std::int64_t tp_pieces = 0, tp_fallbacks = 0;
  std::string tp_transport;
  std::string indirect;  // why pushes do not move the weights
  StepLimit limit;       // of the rank with the longest limit, for which the other ranks wait
  int ranks = 1;
};

// Measures the steps. Collective over the world; returns the same result on every rank. Throws the same error on every
// rank if a step is skipped or if its loss or norm is not finite.
StepReport measure_step(comm::World& world, const StepBench& bench);

// Measures the limit of this rank's part of a step (step_limit.cpp). Frees the memory that it uses.
StepLimit measure_limit(const StepBench& bench, int rank, base::Device device);

std::string step_text(const StepBench& bench, const StepReport& report);
nlohmann::ordered_json step_json(const StepBench& bench, const StepReport& report);

}  // namespace tessera::bench
