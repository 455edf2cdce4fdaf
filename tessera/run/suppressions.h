// The suppressed steps of a run (docs/schedule.md): which are suppressed for debugging, how often each was, and how
// often one may be.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tessera/train/gradient_norm.h"

namespace tessera::run {

// The stop counter of --debug-suppress.
inline constexpr const char* kDebugStop = "debug_suppress";

// The same on every rank. A step's attempt is what is enqueued for it; one that is discarded, since a step before it
// was suppressed, is no attempt here.
class Suppressions {
 public:
  // Attempts of a step that may be suppressed in a row.
  static constexpr int kMost = 10;

  // injected: by step, how many of its attempts are suppressed although nothing is wrong: the first ones.
  explicit Suppressions(std::map<std::int64_t, int> injected) : injected_(std::move(injected)) {}

  bool has_injections() const { return !injected_.empty(); }
  // Whether an attempt of the step that is enqueued now is to be suppressed.
  bool is_injected(std::int64_t step) const;
  // The oldest step that was pending was suppressed. Errors: its attempt number kMost was.
  void saw_suppressed(std::int64_t step, const train::Stop& stop);
  // The oldest step that was pending counts. Returns how many of its attempts were suppressed.
  int saw_counted();
  // Suppressed attempts so far, by the counter that stopped them.
  const std::map<std::string, std::int64_t>& by_counter() const { return by_counter_; }

 private:
  std::map<std::int64_t, int> injected_;  // what is left of them
  std::map<std::string, std::int64_t> by_counter_;
  int in_a_row_ = 0;  // of the oldest step that is not finished
};

}  // namespace tessera::run
