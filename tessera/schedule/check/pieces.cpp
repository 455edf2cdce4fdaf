#include "tessera/schedule/check/pieces.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

namespace tessera::schedule {
namespace {

using TransferName = std::pair<std::string, std::string>;  // group; transfer, such as "gather"

struct Piece {
  TransferName transfer;
  int number = 0;
};

Piece piece_of(const Event& event) {
  constexpr std::string_view word = " piece ";
  const std::size_t at = event.op.find(word);
  Piece piece{.transfer = {event.group, event.op.substr(0, at)}};
  const char* first = event.op.data() + at + word.size();
  std::from_chars(first, event.op.data() + event.op.size(), piece.number);
  return piece;
}

bool is_begin(const Event& event) {
  return event.kind == EventKind::comm && is_piece_op(event.op);
}

struct ArenaRange {
  std::int64_t begin = 0, end = 0;
};

// One transfer of a microbatch.
struct PieceTransfer {
  TransferName name;
  Pass pass = Pass::forward;
  ParameterId parameter = kNoParameter;
  int begin = 0;                   // index of the event that begins piece 1
  std::vector<int> needs;          // indices of the need events
  int sum = -1;                    // index of the sum; -1: none so far
  std::vector<ArenaRange> ranges;  // ranges of the transfer arena that hold the transfer

  bool is_scatter() const { return name.second == kScatter; }
};

class PieceOrder {
 public:
  PieceOrder(const Trace& trace, CheckFaults& faults) : trace_(trace), faults_(faults) {
    for (const Event& event : trace)
      if (is_begin(event))
        last_[piece_of(event).transfer] = std::max(last_[piece_of(event).transfer], piece_of(event).number);
  }

  void run() {
    for (int index = 0; index < static_cast<int>(trace_.size()) && !faults_.full(); ++index) {
      const Event& event = trace_[static_cast<std::size_t>(index)];
      if (event.microbatch != microbatch_) end_microbatch(event.microbatch);
      if (is_begin(event)) begin(index, event);
      if (event.kind == EventKind::need) need(index, event);
      if (event.kind == EventKind::sum) sum(index, event);
      if (!last_.empty() && event.parameter >= 0) places_[{event.kind, event.parameter, event.pass}].push_back(index);
    }
    end_microbatch(-1);
  }

 private:
  void begin(int index, const Event& event) {
    const Piece piece = piece_of(event);
    int& previous = previous_[piece.transfer];
    const int expected = previous == last_[piece.transfer] ? 1 : previous + 1;
    if (piece.number != expected) faults_.add("{}: expected piece {} of the transfer", faults_.event(index), expected);
    previous = piece.number;
    if (piece.number == 1 || !newest_.contains(piece.transfer)) begin_transfer(index, event, piece.transfer);
    open_[{event.group, event.op, event.pass}].push_back({index, newest_.at(piece.transfer)});
  }

  void begin_transfer(int index, const Event& event, const TransferName& name) {
    newest_[name] = transfers_.size();
    transfers_.push_back({.name = name, .pass = event.pass, .parameter = event.parameter, .begin = index});
    if (transfers_.back().is_scatter()) {
      pending_.push_back(transfers_.size() - 1);
      if (event.parameter < 0) return;
      const auto uses = static_cast<int>(places_[{EventKind::consume, event.parameter, event.pass}].size());
      if (++written_[{event.parameter, event.pass}] > uses)
        faults_.add("{}: expected the consume event of the weight before, because its product writes the piece",
                    faults_.event(index));
      return;
    }
    for (const std::size_t pending : pending_)
      if (const PieceTransfer& scatter = transfers_[pending]; scatter.name.first == event.group)
        faults_.add("{}: expected the sum of {} before, because the tokens are computed from it", faults_.event(index),
                    faults_.event(scatter.begin));
  }

  void need(int index, const Event& event) {
    std::vector<Begun>& open = open_[{event.group, event.op, event.pass}];
    if (open.empty()) return faults_.add("{}: expected a piece that has begun before", faults_.event(index));
    PieceTransfer& transfer = transfers_[open.front().transfer];
    open.erase(open.begin());
    transfer.needs.push_back(index);
    if (event.offset >= 0 && (transfer.is_scatter() || transfer.ranges.empty()))
      transfer.ranges.push_back({.begin = event.offset, .end = event.offset + event.bytes});
  }

  // The sum belongs to the oldest scatter of its weight that has no sum. A sum of one rank has no scatter.
  void sum(int index, const Event& event) {
    const TransferName name{event.group, std::string(kScatter)};
    std::vector<int> ranks(static_cast<std::size_t>(last_[name]) + 1);
    std::iota(ranks.begin(), ranks.end(), 0);
    if (event.op != sum_op(ranks)) faults_.add("{}: expected the order '{}'", faults_.event(index), sum_op(ranks));
    if (ranks.size() == 1) return;
    const auto found = std::ranges::find_if(pending_, [&](std::size_t pending) {
      const PieceTransfer& it = transfers_[pending];
      return it.name == name && it.pass == event.pass && it.parameter == event.parameter;
    });
    if (found == pending_.end()) return faults_.add("{}: expected a scatter before", faults_.event(index));
    PieceTransfer& scatter = transfers_[*found];
    pending_.erase(found);
    scatter.sum = index;
    if (static_cast<int>(scatter.needs.size()) != last_[name])
      faults_.add("{}: expected the need events of {} pieces before, got {}", faults_.event(index), last_[name],
                  scatter.needs.size());
  }

  // Returns the index of the first event of this kind, with the transfer's parameter and pass, after the transfer's
  // beginning.
  std::optional<int> next(EventKind kind, const PieceTransfer& transfer) const {
    const auto places = places_.find({kind, transfer.parameter, transfer.pass});
    if (places == places_.end()) return std::nullopt;
    const auto found = std::ranges::upper_bound(places->second, transfer.begin);
    return found == places->second.end() ? std::nullopt : std::optional(*found);
  }

  // Returns the index of the event at which the last reader of the transfer has finished.
  int last_reader(const PieceTransfer& transfer) {
    if (transfer.is_scatter()) {
      if (transfer.sum < 0) faults_.add("{}: expected a sum in the same microbatch", faults_.event(transfer.begin));
      return transfer.sum;
    }
    int last = transfer.needs.empty() ? transfer.begin : transfer.needs.back();
    if (transfer.parameter < 0) return last;
    const bool is_for_wgrad = transfer.name.second == kWgradGather;
    const std::optional<int> release = next(EventKind::release, transfer);
    const std::optional<int> produce = next(EventKind::produce, transfer);
    const std::optional<int> first = is_for_wgrad ? produce : release;
    if (!first && !is_for_wgrad)
      faults_.add("{}: expected a release event of the weight, whose product reads the tokens",
                  faults_.event(transfer.begin));
    if (first && last > *first)
      faults_.add("{}: expected it before {}, because the product reads the tokens", faults_.event(last),
                  faults_.event(*first));
    for (const std::optional<int>& reader : {is_for_wgrad ? std::nullopt : release, produce})
      if (reader) last = std::max(last, *reader);
    return last;
  }

  void check_readers() {
    std::vector<std::pair<const PieceTransfer*, int>> held;  // transfers with ranges in use; index of the last reader
    for (const PieceTransfer& transfer : transfers_) {
      const int last = last_reader(transfer);
      std::erase_if(held, [&](const auto& it) { return it.second < transfer.begin; });
      held.emplace_back(&transfer, last);
      for (const auto& [other, reader] : held) compare_ranges(*other, transfer);
    }
  }

  void compare_ranges(const PieceTransfer& earlier, const PieceTransfer& later) {
    for (std::size_t a = 0; a < earlier.ranges.size(); ++a)
      for (std::size_t b = 0; b < later.ranges.size(); ++b) {
        if (&earlier == &later && b <= a) continue;
        const ArenaRange &left = earlier.ranges[a], &right = later.ranges[b];
        if (left.begin < right.end && right.begin < left.end)
          faults_.add("{}: received into bytes [{}, {}) of the transfer arena, but {} uses [{}, {})",
                      faults_.event(later.begin), right.begin, right.end, faults_.event(earlier.begin), left.begin,
                      left.end);
      }
  }

  void end_microbatch(int next) {
    for (auto& [op, open] : open_) {
      for (const Begun& piece : open)
        faults_.add("{}: expected a need event in the same microbatch", faults_.event(piece.event));
      open.clear();
    }
    for (auto& [transfer, previous] : previous_) {
      if (previous != 0 && previous != last_[transfer])
        faults_.add("a {} over {} ends with piece {} in microbatch {}, expected {}", transfer.second, transfer.first,
                    previous, microbatch_, last_[transfer]);
      previous = 0;
    }
    check_readers();
    transfers_.clear(), newest_.clear(), pending_.clear(), places_.clear(), written_.clear();
    microbatch_ = next;
  }

  struct Begun {
    int event = 0;             // index of the event that begins the piece
    std::size_t transfer = 0;  // index into transfers_
  };

  const Trace& trace_;
  CheckFaults& faults_;
  int microbatch_ = -1;
  // Number of the last piece of each transfer, and of its newest piece.
  std::map<TransferName, int> last_, previous_;
  std::vector<PieceTransfer> transfers_;        // transfers of the microbatch, in order of their beginnings
  std::map<TransferName, std::size_t> newest_;  // index of the newest transfer of each name
  std::vector<std::size_t> pending_;            // scatters without a sum: indices into transfers_
  // Indices of the microbatch's events with a parameter.
  std::map<std::tuple<EventKind, ParameterId, Pass>, std::vector<int>> places_;
  std::map<std::pair<ParameterId, Pass>, int> written_;  // number of scatters in the microbatch
  // Pieces for which no need event has occurred yet.
  std::map<std::tuple<std::string, std::string, Pass>, std::vector<Begun>> open_;
};

}  // namespace

void check_pieces(const Trace& trace, CheckFaults& faults) {
  PieceOrder(trace, faults).run();
}

}  // namespace tessera::schedule
