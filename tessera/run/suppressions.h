// Counts the suppressed steps of a run (docs/schedule.md), limits them, and injects suppressions for debugging.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tessera/train/update/gradient_norm.h"

namespace tessera::run {

// The stop counter of --debug-suppress.
inline constexpr const char* kDebugStop = "debug_suppress";

// The state is equal on every rank. Each time a step is enqueued is an attempt of the step. An attempt that is
// discarded because an earlier step was suppressed is not counted here.
class Suppressions {
 public:
  // The run fails if a step has this number of suppressed attempts in a row.
  static constexpr int kMaxAttempts = 10;

  // `injected`: by step, the number of its first attempts that are suppressed for debugging.
  explicit Suppressions(std::map<std::int64_t, int> injected) : injected_(std::move(injected)) {}

  bool has_injections() const { return !injected_.empty(); }
  // Returns whether the attempt of `step` that the caller enqueues now must be suppressed.
  bool is_injected(std::int64_t step) const;
  // Called when the oldest pending step was suppressed. Throws Error after kMaxAttempts suppressed attempts of the
  // step.
  void record_suppressed(std::int64_t step, const train::Stop& stop);
  // Called when the oldest pending step was not suppressed. Returns the number of earlier attempts of the step that
  // were suppressed.
  int record_counted();
  // Returns the number of suppressed attempts so far, by stop counter.
  const std::map<std::string, std::int64_t>& by_counter() const { return by_counter_; }

 private:
  std::map<std::int64_t, int> injected_;  // by step: number of remaining injections
  std::map<std::string, std::int64_t> by_counter_;
  int consecutive_ = 0;  // suppressed attempts of the oldest unfinished step
};

}  // namespace tessera::run
