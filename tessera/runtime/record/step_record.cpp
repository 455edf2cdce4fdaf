#include "tessera/runtime/record/step_record.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/rendezvous/boards/board.h"

namespace tessera::runtime {
namespace {

constexpr std::size_t kStatusBytes = rendezvous::kLongestStatus;
constexpr std::size_t kLongestEvent = 600;  // largest number of bytes of an encoded event, including its texts
// Ranks are at most one collective apart, so the newest hashes of a step are enough.
constexpr std::size_t kPostedStages = 256;

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads a text that another rank has posted. Each number is checked, because another program may have replaced the
// text.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  bool at_end() const { return at_ >= bytes_.size(); }
  // Reads a number that must be in [0, most].
  template <typename T>
  std::size_t count(std::size_t most, const char* what) {
    const std::size_t value = get<T>();
    if (value > most) throw Error("posted steps: expected at most {} {}, got {}", most, what, value);
    return value;
  }
  // Reads a value of an enumeration whose largest value is `last`.
  template <typename Enum>
  Enum kind(Enum last, const char* what) {
    return static_cast<Enum>(count<std::underlying_type_t<Enum>>(static_cast<std::size_t>(last), what));
  }
  template <typename T>
  T get() {
    T value{};
    TESSERA_CHECK(at_ + sizeof value <= bytes_.size(), "posted steps of {} bytes end too early", bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const auto size = get<std::uint8_t>();
    TESSERA_CHECK(at_ + size <= bytes_.size(), "posted steps of {} bytes end too early", bytes_.size());
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

 private:
  const std::string& bytes_;
  std::size_t at_ = 0;
};

void put_text(std::string& bytes, const std::string& text) {
  const std::size_t size = std::min<std::size_t>(text.size(), 255);
  put(bytes, static_cast<std::uint8_t>(size));
  bytes.append(text, 0, size);
}

void put_event(std::string& bytes, const schedule::Event& event) {
  put(bytes, event.kind);
  put(bytes, event.step);
  put(bytes, event.pass);
  put(bytes, event.microbatch);
  put(bytes, event.parameter);
  put(bytes, event.ordinal);
  put(bytes, event.bytes);
  put_text(bytes, event.group);
  put_text(bytes, event.op);
}

schedule::Event get_event(Reader& reader) {
  schedule::Event event;
  event.kind = reader.kind(schedule::EventKind::sum, "as the kind of an event");
  event.step = reader.kind(schedule::StepKind::evaluate, "as the kind of a step");
  event.pass = reader.kind(schedule::Pass::backward, "as a pass");
  event.microbatch = reader.get<int>();
  event.parameter = reader.get<schedule::ParameterId>();
  event.ordinal = reader.get<int>();
  event.bytes = reader.get<std::int64_t>();
  event.group = reader.text();
  event.op = reader.text();
  return event;
}

void put_step(std::string& bytes, const StepRecord& step) {
  const std::size_t first = step.hashes() - std::min(step.hashes(), kPostedStages);
  put(bytes, step.number());
  put(bytes, static_cast<std::uint8_t>(step.is_over()));
  put(bytes, static_cast<std::uint32_t>(first));
  put(bytes, static_cast<std::uint32_t>(step.hashes() - first));
  for (std::size_t stage = first; stage < step.hashes(); ++stage) put(bytes, step.hash_before(stage));
}

PostedSteps::Step get_step(Reader& reader) {
  PostedSteps::Step step;
  step.number = reader.get<std::int64_t>();
  step.is_over = reader.get<std::uint8_t>() != 0;
  step.first = reader.get<std::uint32_t>();
  step.hashes.resize(reader.count<std::uint32_t>(kPostedStages, "hashes of a step"));
  for (std::uint64_t& hash : step.hashes) hash = reader.get<std::uint64_t>();
  return step;
}

}  // namespace

void StepRecord::begin(std::int64_t number) {
  number_ = number;
  is_over_ = false;
  trace_.clear();
  hash_ = 0;
  ends_.clear();
  begins_.clear();
}

void StepRecord::add(const schedule::Event& event) {
  const bool is_new_stage = trace_.empty() || trace_.back().microbatch != event.microbatch;
  if (is_new_stage) {
    ends_.push_back(hash_);
    begins_.push_back(trace_.size());
  }
  hash_ = hash_event(hash_, event);
  trace_.push_back(event);
}

const PostedSteps::Step* PostedSteps::find(std::int64_t number) const {
  const auto found = std::ranges::find(steps, number, &Step::number);
  return found == steps.end() ? nullptr : &*found;
}

void StepHistory::begin_step() {
  const std::int64_t number = step() + 1;
  steps_.back().end();
  if (steps_.size() < kKeptSteps)
    steps_.emplace_back();
  else
    std::ranges::rotate(steps_, steps_.begin() + 1);
  steps_.back().begin(number);
}

std::string encode_posted_steps(std::span<const StepRecord> steps, Stage dumped) {
  std::string bytes;
  put(bytes, static_cast<std::uint32_t>(steps.size()));
  for (const StepRecord& step : steps) put_step(bytes, step);
  put(bytes, dumped.step);
  put(bytes, dumped.index);
  std::string events;
  bool is_whole = true;
  for (const StepRecord& step : steps) {
    if (step.number() != dumped.step || dumped.index < 0) continue;
    const auto stage = static_cast<std::size_t>(dumped.index);
    for (std::size_t i = step.begin_of(stage); i < step.end_of(stage) && is_whole; ++i) {
      is_whole = bytes.size() + events.size() + kLongestEvent < kStatusBytes;
      if (is_whole) put_event(events, step.trace()[i]);
    }
  }
  put(bytes, static_cast<std::uint8_t>(is_whole));
  return bytes + events;
}

PostedSteps parse_posted_steps(const std::string& bytes) {
  PostedSteps posted;
  if (bytes.empty()) return posted;
  Reader reader(bytes);
  const std::size_t steps = reader.count<std::uint32_t>(kKeptSteps, "steps");
  for (std::size_t i = 0; i < steps; ++i) posted.steps.push_back(get_step(reader));
  posted.dumped.step = reader.get<std::int64_t>();
  posted.dumped.index = reader.get<std::int64_t>();
  posted.is_whole = reader.get<std::uint8_t>() != 0;
  while (!reader.at_end()) posted.events.push_back(get_event(reader));
  return posted;
}

}  // namespace tessera::runtime
