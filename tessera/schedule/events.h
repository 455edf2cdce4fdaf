// A training step as a list of events: what the program does with its weights and its groups, in program order.
//
// The runtime records it while the step runs. The identity of an event is (step kind, microbatch, pass, parameter,
// ordinal): ordinal counts the events of the same kind with the same other fields, so a layer used twice in one pass
// has two consumes, 0 and 1.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::schedule {

enum class StepKind : std::uint8_t { train, evaluate };
enum class Pass : std::uint8_t { forward, recompute, backward };
enum class EventKind : std::uint8_t {
  consume,  // the compute part of a weight is needed from here ...
  release,  // ... to here
  produce,  // a use of a weight has written its gradient; the last of a microbatch completes it
  publish,  // the stored weight has a new version
  comm,     // another collective of the program: opaque, but in the order. With a parameter: its rows,
            // read by index. Outside the microbatches: the optimizer's (kCastGroup)
  stash,    // bytes of activations are kept for backward (op: the way they are kept, "keep" or "shard") ...
  fetch,    // ... and given back
};

// Index of a parameter in its runtime, in order of registration.
using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;

struct Event {
  EventKind kind = EventKind::consume;
  StepKind step = StepKind::train;
  int microbatch = -1;  // -1: outside every microbatch (the optimizer's events)
  Pass pass = Pass::forward;
  ParameterId parameter = kNoParameter;
  int ordinal = 0;
  std::string group, op;   // of comm; stash and fetch: op is the way
  std::int64_t bytes = 0;  // of comm: what this rank gives; of stash and fetch: what this rank keeps

  bool operator==(const Event&) const = default;
};

using Trace = std::vector<Event>;

// Group and op of the message that takes the amaxes of a bucket's weights together, over all ranks of the world, before
// the bucket is cast and published.
inline constexpr const char* kCastGroup = "casts";
inline constexpr const char* kAmaxOp = "all_reduce max";

// Group and op of rows that are read by index, in the first domain (check/together.h).
inline constexpr const char* kRowGroup = "rows";
inline constexpr const char* kRowOp = "gather_rows";

// Whether two events are the same one of their step: all but the bytes, which differ between ranks that uneven cuts
// leave with more or less.
bool is_same(const Event& a, const Event& b);
// Of what is_same compares. Rolling: hash_event(h, e) over the events in order, from h = 0, is hash_trace. The same on
// every machine.
std::uint64_t hash_event(std::uint64_t hash, const Event& event);
std::uint64_t hash_trace(const Trace& trace);

// The greatest sum of bytes stashed and not yet fetched.
std::int64_t peak_stashed(const Trace& trace);

std::string_view name_of(StepKind kind);
std::string_view name_of(Pass pass);
std::string_view name_of(EventKind kind);
// "train mb 0 backward consume #3 (1)"; names[parameter] replaces the number where given.
std::string to_string(const Event& event, const std::vector<std::string>& names = {});

}  // namespace tessera::schedule
