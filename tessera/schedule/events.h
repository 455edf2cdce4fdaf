// A training step as a list of events: the program's uses of weights and its collectives, in program order.
//
// The runtime records the events while the step runs. (step kind, microbatch, pass, parameter, ordinal) identifies an
// event among the events of its kind. The ordinal counts the events of one kind whose other fields are equal. For
// example, a layer used twice in one pass has the consumes 0 and 1.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::schedule {

enum class StepKind : std::uint8_t { train, evaluate };
enum class Pass : std::uint8_t { forward, recompute, backward };
enum class EventKind : std::uint8_t {
  consume,  // the program reads the compute part of a weight from this event on ...
  release,  // ... to here
  produce,  // a use of a weight has written its gradient; the last produce of a microbatch completes the gradient
  publish,  // the stored weight has a new version
  comm,     // another collective of the program. With a parameter: the collective reads rows of the parameter by index.
            // Outside the microbatches: the optimizer's collective (kCastGroup)
  stash,    // bytes of activations are kept for backward (`op` is "keep" or "shard") ...
  fetch,    // ... and backward takes them back
  need,     // the program waits for a piece of a transfer, which a comm event with the same group, pass and op began
};

// Index of a parameter in its runtime, in the order of registration.
using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;

struct Event {
  EventKind kind = EventKind::consume;
  StepKind step = StepKind::train;
  int microbatch = -1;  // -1: outside the microbatches (the optimizer's events)
  Pass pass = Pass::forward;
  ParameterId parameter = kNoParameter;
  int ordinal = 0;
  std::string group, op;  // group and operation of comm and need; for stash and fetch, `op` is "keep" or "shard"
  // For comm: the bytes that this rank contributes; for stash and fetch: the bytes that it keeps.
  std::int64_t bytes = 0;

  bool operator==(const Event&) const = default;
};

using Trace = std::vector<Event>;

// Group of the optimizer's all-reduces over all ranks of the world, and their ops. kAmaxOp: takes the maximum of a
// bucket's amaxes, before the bucket is cast and published. kCountsOp: adds how often experts were chosen, before the
// biases of routers are published.
inline constexpr const char* kCastGroup = "casts";
inline constexpr const char* kAmaxOp = "all_reduce max";
inline constexpr const char* kCountsOp = "all_reduce sum";

// Group and op of the collective that reads rows by index, in the first domain (role_name() in check/together.h).
inline constexpr const char* kRowGroup = "rows";
inline constexpr const char* kRowOp = "gather_rows";

// The op of a piece: transfer 1 of "gather" or "scatter" over n ranks has the pieces "gather piece 1" to "gather piece
// n-1", in this order. Piece k goes from each rank r to rank r + k. The k-th need of an op waits for its k-th piece.
std::string piece_op(std::string_view transfer, int piece);
bool is_piece_op(std::string_view op);

// Returns whether two events are the same event of their step. Compares everything except the bytes, which differ
// between ranks whose shards have different sizes.
bool is_same(const Event& a, const Event& b);
// Hashes the fields that is_same compares. hash_trace starts with 0 and applies hash_event to each event in order. The
// hashes are equal on all machines.
std::uint64_t hash_event(std::uint64_t hash, const Event& event);
std::uint64_t hash_trace(const Trace& trace);

// Returns the largest number of bytes that are stashed and not yet fetched at any event.
std::int64_t peak_stashed(const Trace& trace);

std::string_view name_of(StepKind kind);
std::string_view name_of(Pass pass);
std::string_view name_of(EventKind kind);
// Returns a text like "train mb 0 backward consume #3 (1)". names[parameter] replaces "#3" if `names` contains it.
std::string to_string(const Event& event, const std::vector<std::string>& names = {});

}  // namespace tessera::schedule
