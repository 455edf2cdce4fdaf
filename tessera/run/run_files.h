// Writes the files of a run to its folder, and prints its progress. Only rank 0 uses this class.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "tessera/checkpoint/io.h"
#include "tessera/hub/run_directory.h"
#include "tessera/run/run_setup.h"
#include "tessera/runtime/runtime.h"
#include "tessera/telemetry/metric_summary.h"
#include "tessera/telemetry/metrics.h"
#include "tessera/telemetry/progress.h"
#include "tessera/telemetry/tensorboard.h"

namespace tessera::run {

// The results in the summary of a run. The summary also contains settings.
struct RunSummary {
  std::int64_t failed_saves = 0;
  std::int64_t last_step = 0, trained_steps = 0, skipped_steps = 0, unproduced_gradients = 0;
  // Counters of rank 0, summed over the run's steps (runtime/watch/statistics.h).
  std::int64_t tp_pieces = 0, tp_fallbacks = 0, columnwise_copies = 0;
  runtime::TpWireFallbacks tp_wire_fallbacks{};
  double expert_room = 0;                             // Trainer::expert_room() at the end of the run
  std::int64_t padded_products = 0;                   // counter of rank 0 in the last step (runtime/watch/statistics.h)
  std::map<std::string, std::int64_t> suppressed_by;  // suppressed attempts of steps, by stop counter
  std::int64_t discarded_steps = 0;                   // steps that were discarded after a suppressed step
  telemetry::MetricSummary metrics;
  std::filesystem::path checkpoint;
  bool interrupted = false;               // whether the run stopped on request before its last step
  runtime::ScheduleStatistics schedules;  // schedules of rank 0
  std::int64_t graph_steps = 0;           // steps that were launched as a graph
  // Number of times that rank 0's host waited for its device within steps (base/lanes/host_waits.h).
  std::int64_t host_waits = 0;
};

class RunFiles {
 public:
  // Checks the folder without writing to it, locks it if it exists, and prints a description of the run. Throws the
  // errors of check_run_directory and check_metrics, and InputError if another process trains in the folder.
  explicit RunFiles(const RunSetup& setup);

  // Returns whether the run resumes in its own folder without a step left, and summary.json already has the results of
  // its last step. Such a run must not open its files, because it would replace these results.
  bool is_finished() const { return finished_; }

  // Creates the folder, sets aside (renames) the checkpoints that the resumed run replaces, writes config.json and the
  // tokenizer, and opens the other files. Called once, after every check that can refuse the run. Throws the errors of
  // create_run_directory.
  void open();
  // Removes the checkpoints that open() has set aside, in this run or in crashed runs. Called after the run has saved
  // its first checkpoint.
  void remove_set_aside() const;

  // Prints a warning if the file system has too little space for the checkpoints that --keep keeps and one more, or for
  // one checkpoint without --keep. Called after open().
  void check_room(std::int64_t checkpoint_bytes);

  // Prints the line of a step. `other_seconds`, `is_evaluated`: as in telemetry::Progress.
  void show(const telemetry::StepMetrics& metrics, double other_seconds, bool is_evaluated) {
    progress_.step(metrics, other_seconds, is_evaluated);
  }
  // Shows the progress and the end of an evaluation after a step (telemetry::Progress).
  void evaluating(std::int64_t step, double share, double seconds) { progress_.evaluating(step, share, seconds); }
  void evaluated(std::int64_t step, const telemetry::LossBySet& losses, double seconds) {
    progress_.evaluated(step, losses, seconds);
  }
  // Writes the line to metrics.jsonl, and its scalars to TensorBoard's file.
  void store(const telemetry::StepMetrics& metrics);
  void step_trace(std::int64_t step, const nlohmann::ordered_json& trace);
  void note(const std::string& line) { progress_.print(line); }
  void finish(const RunSummary& summary);

 private:
  void note_held_out_losses(const nlohmann::ordered_json& summary);
  void note_how_to_resume(const RunSummary& summary);

  const RunSetup& setup_;
  hub::RunDirectory directory_;
  checkpoint::FileDescriptor lock_;                  // the lock on the folder, for the lifetime of this object
  bool finished_;                                    // set after the folder was checked
  std::optional<telemetry::MetricsWriter> metrics_;  // set by open()
  std::optional<telemetry::TensorBoardWriter> tensorboard_;
  telemetry::Progress progress_;
};

}  // namespace tessera::run
