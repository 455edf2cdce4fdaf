// The benchmark `step`: whole training steps on random tokens, compared with the hardware's limit.
//
// The steps run as in a training loop: on a GPU the host enqueues the next step before it waits for the previous step.
// A step's time is from the end of the previous step to its own end on compute's lane (train::StepResult). The
// benchmark adds no synchronization between steps. The reported time of a step is the time of its slowest rank. The
// times of the ranks are gathered after all steps. The batches are created before the first step.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/bench/routing.h"
#include "tessera/comm/world.h"
#include "tessera/predict/update_bytes.h"
#include "tessera/settings/expert_summary.h"
#include "tessera/telemetry/metric.h"
#include "tessera/train/trainer.h"

namespace tessera::bench {

inline constexpr int kWarmupSteps = 3, kMeasuredSteps = 10;

struct StepBench {
  settings::ResolvedRun run;  // its number of steps is not used
  // The runtime records the first warm-up step to plan the schedule.
  int warmup = kWarmupSteps, steps = kMeasuredSteps;
  std::filesystem::path profile = {};  // where rank 0 writes a profile of two more steps; empty: no profile
  Routing routing = Routing::even;     // load of the experts in a model with experts
};

// Lower bound of a rank's step time without overlap, in seconds. The limit is the measured time of the step's products
// and attention calls, plus the time to copy as many bytes as all other work moves. The calls run on the rank's device
// in the order of a step. They are repeated for long enough that a GPU reaches its power limit, as in training.
struct StepLimit {
  double products = 0, attention = 0;  // measured
  // The bytes that all other work reads and writes, and the rate of the copies in bytes per second (read + write).
  double bytes = 0, copy_rate = 0;
  int rounds = 0;                         // number of repetitions, over which the times are means
  std::vector<predict::RuleBytes> rules;  // of the update, which is part of `bytes`; of the first rank
  double seconds() const { return products + attention + bytes / copy_rate; }
};

struct StepReport {
  double median_ms = 0, p10_ms = 0, p90_ms = 0;  // median and quantiles of the slowest rank's steps
  double tokens_per_second_per_rank = 0;
  double flops = 0;  // model flops of a step, divided by the number of ranks (predict/model_flops.h)
  // Peak flops per second of a rank's processor; nullopt: unknown, so mfu is also unknown.
  std::optional<double> peak_flops;
  telemetry::StepMetrics metrics;  // medians over the steps whose waits were measured
  // Like metrics.exposed_comm_ms, but the minimum over the ranks instead of the mean. The slowest rank waits least, and
  // the other ranks also wait for the slowest rank.
  double least_exposed_comm_ms = 0;
  double waiting_ms = 0;          // time in which a GPU waits for its host; the greatest of the ranks in each step
  double host_ms = 0;             // this rank's host time to enqueue a step, including waits for a full queue
  std::int64_t memory_bytes = 0;  // bytes used on the device, the maximum over the ranks; 0 on a CPU
  std::int64_t tensor_bytes = 0;  // peak bytes of this rank's tensors
  // Bytes that the allocator of tensors holds. Arenas, weights and optimizer states are not included.
  std::int64_t tensor_cache_bytes = 0;
  std::int64_t gather_arena_bytes = 0, reduce_arena_bytes = 0, scratch_bytes = 0;  // from the schedule
  double loss = 0;
  // Set for a model with experts. expert_load: load of the last step (routing.h).
  std::optional<double> expert_load;
  std::optional<settings::ExpertSummary> experts;
  std::string transport;         // run::transport_of
  runtime::StepStatistics last;  // counters of this rank's last step
  std::string tp_transport;      // run::tp_transport_of
  std::string indirect;          // the reason why pushes do not move the weights; empty if they do
  StepLimit limit;               // the limit of the rank with the greatest limit, for which the other ranks wait
  int ranks = 1;
};

// Measures the steps. Collective over the world; returns the same result on every rank. The process of a rank has
// called run::set_up_process. Throws the same error on every rank if a step is skipped or if its loss or norm is not
// finite.
StepReport measure_step(comm::World& world, const StepBench& bench);

// Measures the limit of this rank's part of a step (step_limit.cpp). Frees the memory that it uses.
StepLimit measure_limit(const StepBench& bench, int rank, base::Device device);

std::string step_text(const StepBench& bench, const StepReport& report);
nlohmann::ordered_json step_json(const StepBench& bench, const StepReport& report);

}  // namespace tessera::bench
