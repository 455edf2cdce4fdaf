// Measures the evaluations and checkpoints of a run, for which the training pauses. Only rank 0 uses the measurements.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::run {

// When a run evaluates and saves.
struct PausePlan {
  std::int64_t last_step = 0, eval_every = 0, save_every = 0;  // the last two: 0: only after the last step
  std::int64_t eval_samples = 0;     // samples of each set in evaluations before the last step; 0: all
  std::vector<std::int64_t> sets{};  // numbers of samples of the held-out sets
};

class Pauses {
 public:
  explicit Pauses(PausePlan plan) : plan_(std::move(plan)) {}

  void add_training(double seconds) { trained_ += seconds; }
  void add_save(double seconds) { save_ = seconds; }
  // Called after an evaluation. Returns a line of advice, once: after the first evaluation before the last step that
  // took more than 10 % of the training time since the previous evaluation. Otherwise returns an empty text.
  std::string add_evaluation(std::int64_t step, double seconds);

  // Returns the number of samples of all sets that the evaluation after the step takes.
  std::int64_t samples_after(std::int64_t step) const;
  std::optional<double> save_seconds() const { return save_; }  // time of the last save
  // Returns the expected seconds of the evaluations and checkpoints after `step` and after the later steps. Those of a
  // kind that is not measured yet count 0.
  double left(std::int64_t step) const;

 private:
  // Returns the largest number of samples of each set with which an evaluation takes at most `all` samples; at least 1.
  std::int64_t samples_of_each(double all) const;
  // Returns how many of the steps from `step` to the last but one are multiples of `every`.
  std::int64_t multiples_from(std::int64_t step, std::int64_t every) const;

  PausePlan plan_;
  double trained_ = 0;            // seconds of training since the last evaluation
  std::optional<double> save_{};  // seconds of the last save
  double per_sample_ = 0;         // seconds of the last evaluation for each sample
  bool has_advised_ = false;
};

}  // namespace tessera::run
