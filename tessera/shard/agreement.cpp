#include "tessera/shard/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 1s;  // a wait longer than this is looked into
constexpr auto kSearch = 10s;   // how long others may take to say what they did
constexpr std::size_t kNoticeBytes = comm::kLongestNotice;

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  bool at_end() const { return at_ >= bytes_.size(); }
  template <typename T>
  T get() {
    T value{};
    TESSERA_CHECK(at_ + sizeof value <= bytes_.size(), "a notice of {} bytes ends too early", bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const auto size = get<std::uint8_t>();
    TESSERA_CHECK(at_ + size <= bytes_.size(), "a notice of {} bytes ends too early", bytes_.size());
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

void put_event(std::string& bytes, const Event& event) {
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

Event get_event(Reader& reader) {
  Event event;
  event.kind = reader.get<EventKind>();
  event.step = reader.get<StepKind>();
  event.pass = reader.get<Pass>();
  event.microbatch = reader.get<int>();
  event.parameter = reader.get<ParameterId>();
  event.ordinal = reader.get<int>();
  event.bytes = reader.get<std::int64_t>();
  event.group = reader.text();
  event.op = reader.text();
  return event;
}

}  // namespace

// What a rank says of its step: the hashes at the newest stages that it has begun (a stage is a microbatch, or what
// follows the last), and the events of one of them. Ranks are at most one collective apart, so the newest are enough.
constexpr std::size_t kPostedStages = 256;

struct Agreement::Notice {
  std::int64_t step = -1;
  std::size_t first = 0;  // the stage of the first of `ends`
  std::vector<std::uint64_t> ends;
  int dumped = -1;  // the stage whose events follow
  Trace events;

  static Notice parse(const std::string& bytes) {
    Notice notice;
    if (bytes.empty()) return notice;
    Reader reader(bytes);
    notice.step = reader.get<std::int64_t>();
    notice.first = reader.get<std::uint32_t>();
    notice.ends.resize(reader.get<std::uint32_t>());
    for (std::uint64_t& end : notice.ends) end = reader.get<std::uint64_t>();
    notice.dumped = reader.get<int>();
    while (!reader.at_end()) notice.events.push_back(get_event(reader));
    return notice;
  }
};

void Agreement::begin_step() {
  ++step_;
  trace_.clear();
  hash_ = 0;
  ends_.clear();
  begins_.clear();
}

void Agreement::add(const Event& event) {
  const bool is_new_stage = trace_.empty() || trace_.back().microbatch != event.microbatch;
  if (is_new_stage) {
    ends_.push_back(hash_);
    begins_.push_back(trace_.size());
  }
  hash_ = hash_event(hash_, event);
  trace_.push_back(event);
}

void Agreement::post() {
  post(-1);
}

void Agreement::post(int dumped) {
  std::string notice;
  put(notice, step_);
  const std::size_t first = ends_.size() - std::min(ends_.size(), kPostedStages);
  put(notice, static_cast<std::uint32_t>(first));
  put(notice, static_cast<std::uint32_t>(ends_.size() - first));
  for (std::size_t stage = first; stage < ends_.size(); ++stage) put(notice, ends_[stage]);
  put(notice, dumped);
  if (dumped >= 0) {
    const auto stage = static_cast<std::size_t>(dumped);
    const std::size_t begin = begins_[stage];
    const std::size_t end = stage + 1 < begins_.size() ? begins_[stage + 1] : trace_.size();
    for (std::size_t i = begin; i < end && notice.size() + 600 < kNoticeBytes; ++i) put_event(notice, trace_[i]);
  }
  parallel_.board->post(std::move(notice));
}

std::string Agreement::difference(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry->name());
  if (ends_.empty()) return {};
  int wanted = static_cast<int>(ends_.size()) - 1;
  for (int rank = 0; rank < parallel_.world->size(); ++rank) {
    const Notice other = Notice::parse(parallel_.board->read(rank));
    if (rank == parallel_.rank || other.step != step_ || other.ends.empty()) continue;
    // Stages that both have begun with the same hash went alike before; the last of these is where they may differ.
    const std::size_t theirs_end = other.first + other.ends.size();
    std::size_t alike = other.first;
    while (alike < ends_.size() && alike < theirs_end && ends_[alike] == other.ends[alike - other.first]) ++alike;
    if (alike == other.first) continue;  // they parted before what this rank still posts, or has begun
    const int stage = static_cast<int>(alike) - 1;
    wanted = std::min(wanted, stage);
    if (other.dumped != stage) continue;
    const std::size_t begin = begins_[alike - 1];
    for (std::size_t i = 0; i < other.events.size() && begin + i < trace_.size(); ++i) {
      if (is_same(other.events[i], trace_[begin + i])) continue;
      return fmt::format("the ranks of a step must do the same: event {} is '{}' on rank {}, '{}' on rank {}",
                         begin + i, to_string(trace_[begin + i], names), parallel_.rank,
                         to_string(other.events[i], names), rank);
    }
    // Alike as far as both go: one ended this stage where the other went on.
    const std::size_t end = alike < begins_.size() ? begins_[alike] : trace_.size();
    const std::size_t own = end - begin, theirs = other.events.size();
    if (alike < ends_.size() && alike < theirs_end && own != theirs)
      return fmt::format("the ranks of a step must do the same: event {} is '{}' on rank {}, '{}' on rank {}",
                         begin + std::min(own, theirs),
                         own > theirs ? to_string(trace_[begin + theirs], names) : "the end of the microbatch",
                         parallel_.rank,
                         theirs > own ? to_string(other.events[own], names) : "the end of the microbatch", rank);
  }
  post(wanted);
  return {};
}

void Agreement::wait(const base::Fence& fence, const Entries& entries) {
  const auto look = [&] {
    const std::string found = difference(entries);
    if (!found.empty()) throw Error("{}", found);
  };
  while (!fence.wait_for(kPatience)) look();
  // A collective that the peers called otherwise, or not at all, may have failed because of such a difference.
  for (int tries = 0; fence.error() && tries < 10; ++tries) {
    look();
    std::this_thread::sleep_for(50ms);
  }
  parallel_.compute->wait(fence);
}

void Agreement::compare(comm::Communicator& group, std::uint64_t number, const std::string& what,
                        const Entries& entries) {
  if (group.size() == 1) return;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  const auto counts = comm::equal_counts(group.size(), 1);
  static_assert(sizeof(std::uint64_t) == sizeof(std::int64_t));
  wait(group.all_gather(&number, all.data(), counts, base::DType::i64), entries);
  if (std::ranges::all_of(all, [&](std::uint64_t other) { return other == number; })) return;
  const auto until = std::chrono::steady_clock::now() + kSearch;
  while (std::chrono::steady_clock::now() < until) {
    const std::string found = difference(entries);
    if (!found.empty()) {
      std::this_thread::sleep_for(200ms);  // the others read what this rank has posted
      throw Error("{}", found);
    }
    std::this_thread::sleep_for(20ms);
  }
  int rank = 0;
  while (all[static_cast<std::size_t>(rank)] == number) ++rank;
  throw Error("{} differs in {}: {:x} on its rank {}, {:x} on its rank {}", what, group.name(), number, group.rank(),
              all[static_cast<std::size_t>(rank)], rank);
}

}  // namespace tessera::shard
