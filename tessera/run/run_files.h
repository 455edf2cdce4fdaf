// What a run leaves in its folder and on the screen. Rank 0's business alone.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "tessera/checkpoint/io.h"
#include "tessera/run/metrics/metrics.h"
#include "tessera/run/metrics/progress.h"
#include "tessera/run/metrics/tensorboard.h"
#include "tessera/run/run_directory.h"
#include "tessera/run/run_setup.h"
#include "tessera/runtime/runtime.h"

namespace tessera::run {

// What the run's summary states besides what its settings say.
struct RunSummary {
  std::int64_t last_step = 0, trained_steps = 0, skipped_steps = 0, unproduced_gradients = 0;
  std::map<std::string, std::int64_t> suppressed_by;  // attempts of steps, by the stop counter that suppressed them
  std::int64_t discarded_steps = 0;                   // enqueued behind one that was suppressed
  std::optional<double> loss, valid_loss;
  double tokens_per_second = 0;                                       // median over this run's steps
  std::array<std::int64_t, quant::kFormats> gathered_by_format{};     // bytes of this run's steps, over all ranks
  std::array<double, quant::kFormats> flops_by_format{};              // of their products with weights
  std::array<std::int64_t, quant::kFormats> activations_by_format{};  // bytes of their activations over tp
  std::filesystem::path checkpoint;
  bool interrupted = false;               // the run was asked to stop before its last step
  runtime::ScheduleStatistics schedules;  // of rank 0
  std::int64_t graph_steps = 0;           // that were launches of a graph
  std::int64_t host_waits = 0;            // of rank 0 within steps (base/host_waits.h)
};

class RunFiles {
 public:
  // Looks only: checks the folder, locks it if it is there, and says on the screen what the run is. Errors: InputError
  // as check_run_directory and check_metrics, or when another process trains there.
  explicit RunFiles(const RunSetup& setup);

  // Makes the folder, sets aside what a resumed run leaves behind, writes config.json, opens the rest. Called once,
  // when nothing can refuse the run any more. Errors: InputError as create_run_directory.
  void open();
  // The run has saved its first checkpoint: removes what open() and runs that crashed have set aside.
  void remove_set_aside() const;

  void step(const StepMetrics& metrics);
  void step_trace(std::int64_t step, const nlohmann::ordered_json& trace);
  void note(const std::string& line) { progress_.note(line); }
  void finish(const RunSummary& summary);

 private:
  void note_how_to_resume(const RunSummary& summary);

  const RunSetup& setup_;
  RunDirectory directory_;
  checkpoint::FileDescriptor lock_;       // on the folder, while this object lives: one run at a time
  std::optional<MetricsWriter> metrics_;  // once it is open
  std::optional<TensorBoardWriter> tensorboard_;
  Progress progress_;
};

}  // namespace tessera::run
