// Counts the suppressed steps of a run (docs/schedule.md), limits them, and injects suppressions for debugging.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tessera/train/gradient_norm.h"

namespace tessera::run {

// The stop counter of --debug-suppress.
inline constexpr const char* kDebugStop = "debug_suppress";

// The state is the same on every rank. An attempt is one enqueue of a step. An attempt that is discarded because an
// earlier step was suppressed is not counted here.
class Suppressions {
 public:
  // A step fails the run with this number of suppressed attempts in a row.
  static constexpr int kMaxAttempts = 10;

  // `injected`: for each step, how many of its first attempts are suppressed for debugging.
  explicit Suppressions(std::map<std::int64_t, int> injected) : injected_(std::move(injected)) {}

  bool has_injections() const { return !injected_.empty(); }
  // Returns whether an attempt of `step` that is enqueued now is to be suppressed.
  bool is_injected(std::int64_t step) const;
  // Called when the oldest pending step was suppressed. Throws Error if that was attempt number kMaxAttempts.
  void record_suppressed(std::int64_t step, const train::Stop& stop);
  // Called when the oldest pending step was not suppressed. Returns how many of its attempts were suppressed.
  int record_counted();
  // Suppressed attempts so far, by stop counter.
  const std::map<std::string, std::int64_t>& by_counter() const { return by_counter_; }

 private:
  std::map<std::int64_t, int> injected_;  // injections left, by step
  std::map<std::string, std::int64_t> by_counter_;
  int consecutive_ = 0;  // suppressed attempts of the oldest unfinished step
};

}  // namespace tessera::run
