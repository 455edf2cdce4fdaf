// The events of a rank's last steps, and the part of them that it posts for other ranks.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::runtime {

// One step as its rank records it. A stage is a microbatch, or the events after the last microbatch.
class StepRecord {
 public:
  void begin(std::int64_t number);
  void add(const schedule::Event& event);
  void end() { is_over_ = true; }  // the next step begins

  std::int64_t number() const { return number_; }
  const schedule::Trace& trace() const { return trace_; }
  std::uint64_t hash() const { return hash_; }
  // Hashes of the trace: one before each stage that has begun, and one at the end of a step that is over.
  std::size_t hashes() const { return ends_.size() + (is_over_ ? 1 : 0); }
  std::uint64_t hash_before(std::size_t stage) const { return stage < ends_.size() ? ends_[stage] : hash_; }
  // The range of a stage in the trace. The range of a stage that has not begun is empty and at the trace's end.
  std::size_t begin_of(std::size_t stage) const { return stage < begins_.size() ? begins_[stage] : trace_.size(); }
  std::size_t end_of(std::size_t stage) const { return begin_of(stage + 1); }
  bool is_over() const { return is_over_; }

 private:
  std::int64_t number_ = 0;
  bool is_over_ = false;
  schedule::Trace trace_;
  std::uint64_t hash_ = 0;
  std::vector<std::uint64_t> ends_;  // the hash before each stage that has begun
  std::vector<std::size_t> begins_;  // index in trace_ where each stage begins
};

// The number of steps that a rank keeps and posts, including the current step.
inline constexpr std::size_t kKeptSteps = 4;

// The last steps of one rank.
class StepHistory {
 public:
  StepHistory() : steps_(1) { steps_.reserve(kKeptSteps); }

  void begin_step();
  void add(const schedule::Event& event) { steps_.back().add(event); }

  std::int64_t step() const { return steps_.back().number(); }            // number of the last step begun, from 1
  const schedule::Trace& trace() const { return steps_.back().trace(); }  // of that step
  std::uint64_t hash() const { return steps_.back().hash(); }             // of that trace
  const std::vector<StepRecord>& steps() const { return steps_; }         // the oldest first

 private:
  std::vector<StepRecord> steps_;
};

// A stage of a step.
struct Stage {
  std::int64_t step = -1;
  std::int64_t index = -1;
  bool operator==(const Stage&) const = default;
  bool operator<(const Stage& other) const { return std::tie(step, index) < std::tie(other.step, other.index); }
};

// The posted part: the newest hashes of each step, and the events of one stage.
struct PostedSteps {
  struct Step {
    std::int64_t number = 0;
    bool is_over = false;
    std::size_t first = 0;  // the stage that hashes[0] precedes
    std::vector<std::uint64_t> hashes;
    std::size_t end() const { return first + hashes.size(); }
  };
  std::vector<Step> steps;
  Stage dumped;          // the stage whose events follow, if any
  bool is_whole = true;  // all of them
  schedule::Trace events;

  const Step* find(std::int64_t number) const;
};

// Returns at most rendezvous::kLongestStatus bytes; if the events do not fit, only the first events. `dumped` may be a
// stage of another step.
std::string encode_posted_steps(std::span<const StepRecord> steps, Stage dumped);
// An empty text gives no steps. Throws Error if the text ends too early.
PostedSteps parse_posted_steps(const std::string& bytes);

}  // namespace tessera::runtime
