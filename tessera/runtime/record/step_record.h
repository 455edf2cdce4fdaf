// The events of a rank's last steps, and the part of these events that the rank posts for other ranks.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::runtime {

// The record of one step on one rank. A stage of a step is a microbatch, or the events after the last microbatch.
class StepRecord {
 public:
  void begin(std::int64_t number);
  void add(const schedule::Event& event);
  void end() { is_over_ = true; }  // called when the next step begins

  std::int64_t number() const { return number_; }
  const schedule::Trace& trace() const { return trace_; }
  std::uint64_t hash() const { return hash_; }
  // Returns the number of hashes of the trace. There is a hash before each stage that has begun, and one at the end of
  // a step that is over.
  std::size_t hashes() const { return ends_.size() + (is_over_ ? 1 : 0); }
  std::uint64_t hash_before(std::size_t stage) const { return stage < ends_.size() ? ends_[stage] : hash_; }
  // Return the range of a stage in the trace. The range of a stage that has not begun is empty and at the end of the
  // trace.
  std::size_t begin_of(std::size_t stage) const { return stage < begins_.size() ? begins_[stage] : trace_.size(); }
  std::size_t end_of(std::size_t stage) const { return begin_of(stage + 1); }
  bool is_over() const { return is_over_; }

 private:
  std::int64_t number_ = 0;
  bool is_over_ = false;
  schedule::Trace trace_;
  std::uint64_t hash_ = 0;
  std::vector<std::uint64_t> ends_;  // the hash before each stage that has begun
  std::vector<std::size_t> begins_;  // by stage: the index in trace_ of its first event
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
  const schedule::Trace& trace() const { return steps_.back().trace(); }  // trace of the last step begun
  std::uint64_t hash() const { return steps_.back().hash(); }             // hash of this trace
  const std::vector<StepRecord>& steps() const { return steps_; }         // oldest step first

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

// The part of a rank's history that it posts: the newest hashes of each step, and the events of one stage.
struct PostedSteps {
  struct Step {
    std::int64_t number = 0;
    bool is_over = false;
    std::size_t first = 0;  // index of the stage that begins after hashes[0]
    std::vector<std::uint64_t> hashes;
    std::size_t end() const { return first + hashes.size(); }
  };
  std::vector<Step> steps;
  Stage dumped;          // the stage whose events are posted; default: no stage
  bool is_whole = true;  // whether `events` contains all events of the stage
  schedule::Trace events;

  const Step* find(std::int64_t number) const;
};

// Returns the posted text, with the events of stage `dumped`. The stage may belong to any step. The text has at most
// rendezvous::kLongestStatus bytes. If the events do not fit, the text contains only the first events.
std::string encode_posted_steps(std::span<const StepRecord> steps, Stage dumped);
// Parses a posted text. An empty text gives no steps. Throws Error if the text ends too early or contains a number that
// encode_posted_steps does not write. Allocates memory in proportion to the text.
PostedSteps parse_posted_steps(const std::string& bytes);

}  // namespace tessera::runtime
