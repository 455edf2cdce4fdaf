// Decides by the clock when a run saves and ends (--save-minutes, --stop-minutes). Only rank 0 decides; the other ranks
// receive its requests with the sums of each step (telemetry/traffic_sum.h).
#pragma once
#include <optional>

namespace tessera::run {

// Returns the seconds since the start of this process.
double process_seconds();

// All times are in seconds. The clock `now` counts from the start of the process.
class Deadlines {
 public:
  // An absent value sets no limit.
  Deadlines(std::optional<double> save_minutes, std::optional<double> stop_minutes, double now);

  void add_step(double seconds) { step_ = seconds; }
  // Called after each save that succeeded. `seconds` is the time that it took.
  void add_save(double now, double seconds);

  // Returns whether the last checkpoint, or the start of the training, is older than --save-minutes. Also returns true
  // if half of --stop-minutes is over and no save was measured, so that is_stop_due knows the time of a save.
  bool is_save_due(double now) const;
  // Returns whether a save must begin so that it ends before --stop-minutes. Between this decision and the save, the
  // run may train kStepsAhead steps.
  bool is_stop_due(double now) const;

  // The step in progress, the two that may be enqueued behind it on a device, and one for slower steps.
  static constexpr int kStepsAhead = 4;

 private:
  std::optional<double> save_every_, stop_at_;
  double saved_at_ = 0, step_ = 0;
  std::optional<double> save_ = {};  // time of the last save
};

}  // namespace tessera::run
