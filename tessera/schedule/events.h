// A training step as a list of events: the program's uses of weights and its collectives, in program order.
//
// The runtime records the events while the step runs. Among the events of its kind, an event is identified by step
// kind, microbatch, pass, parameter and ordinal. The ordinal numbers events whose other fields are equal. For example,
// if a layer is used twice in one pass, its weight has the consume events 0 and 1.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::schedule {

enum class StepKind : std::uint8_t { train, evaluate };
enum class Pass : std::uint8_t { forward, recompute, backward };
enum class EventKind : std::uint8_t {
  consume,  // a use of a weight begins: the program reads the weight's compute part
  release,  // the use ends
  produce,  // a use of a weight has written the weight's gradient; the last produce event of a microbatch completes the
            // gradient
  publish,  // the stored weight has a new version
  comm,     // a collective of the program, or the beginning of a piece of a transfer (piece_op). If a collective has a
            // parameter, it reads rows of this parameter by index. Outside the microbatches: a collective of the
            // optimizer (kCastGroup)
  stash,    // activations are kept for backward; `op` is "keep" or "shard"
  fetch,    // backward reads the kept activations
  need,     // the program waits for a piece of a transfer, which a comm event with the same group, pass and op began
  sum,      // the program adds the parts of a scatter; `op` lists the ranks in the order of the sum (sum_op)
};

// A pass of a microbatch.
struct PassId {
  int microbatch = -1;  // -1: outside the microbatches
  Pass pass = Pass::forward;
  bool operator==(const PassId&) const = default;
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
  // Group and operation of comm, need and sum. For stash and fetch, `op` is "keep" or "shard".
  std::string group, op;
  // For comm: the bytes that this rank contributes. For need: the bytes of the range at `offset`. For stash and fetch:
  // the bytes of the activations.
  std::int64_t bytes = 0;
  // For need: the position in the transfer arena of the range that holds the transfer, in bytes; -1: not known. The
  // pieces of a gather have one range, which includes this rank's own tokens. Each piece of a scatter has a separate
  // range.
  std::int64_t offset = -1;

  bool operator==(const Event&) const = default;
};

using Trace = std::vector<Event>;

// Group and ops of the optimizer's all-reduces over all ranks of the world. kAmaxOp computes the maximum of a bucket's
// amaxes, before the bucket is cast and published. kCountsOp adds the counts of chosen experts, before the biases of
// routers are published.
inline constexpr const char* kCastGroup = "casts";
inline constexpr const char* kAmaxOp = "all_reduce max";
inline constexpr const char* kCountsOp = "all_reduce sum";

// Ops of the optimizer's exchanges for rules of matrices: from the ranks that store parts of matrices to the rank that
// computes with a matrix, and back. Their group is the name of the transfer matrices or replica_matrices. Event::bytes
// are the most bytes that a rank receives.
inline constexpr const char* kGatherMatricesOp = "gather matrices";
inline constexpr const char* kScatterMatricesOp = "scatter matrices";
// Returns whether the event is one of these exchanges.
bool is_of_matrices(const Event& event);

// Op of the collective that reads rows by index. role_name() (check/together.h) gives its group.
inline constexpr const char* kRowOp = "gather_rows";

// Names of transfers in pieces. The events of a piece and of a scatter's sum name the weight whose product uses the
// tokens, if this weight is known.
inline constexpr std::string_view kGather = "gather";                 // read by the product that consumes the weight
inline constexpr std::string_view kWgradGather = "gather for wgrad";  // read by the product that produces its gradient
inline constexpr std::string_view kScatter = "scatter";               // written by the product that consumes the weight

// Returns the op of a piece. A transfer over n ranks has the pieces 1 to n-1, in this order, with the ops "gather piece
// 1" to "gather piece n-1". Piece k goes from each rank r to rank r + k. The k-th need event of a transfer waits for
// piece k.
std::string piece_op(std::string_view transfer, int piece);
bool is_piece_op(std::string_view op);
// Returns the op of a sum, for example "ranks 0 1 2".
std::string sum_op(std::span<const int> ranks);

// Returns whether the event is a collective that reads rows of its parameter by index.
bool reads_rows(const Event& event);

// Returns whether two events are equal except for their bytes and offsets. Bytes and offsets differ between ranks whose
// shards have different sizes.
bool is_same(const Event& a, const Event& b);
// Hash the fields that is_same compares. hash_event combines `hash` with an event. hash_trace starts with 0 and applies
// hash_event to each event in order. The hashes are equal on all machines.
std::uint64_t hash_event(std::uint64_t hash, const Event& event);
std::uint64_t hash_trace(const Trace& trace);

// Returns the peak of the bytes that are stashed and not fetched yet.
std::int64_t peak_stashed(const Trace& trace);

std::string_view name_of(StepKind kind);
std::string_view name_of(Pass pass);
std::string_view name_of(EventKind kind);
// Returns a text like "train mb 0 backward consume #3 (1)". If `names` has an entry for the parameter, the name
// replaces "#3".
std::string to_string(const Event& event, const std::vector<std::string>& names = {});

}  // namespace tessera::schedule
