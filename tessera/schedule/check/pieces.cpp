#include "tessera/schedule/check/pieces.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <tuple>

namespace tessera::schedule {
namespace {

using Transfer = std::pair<std::string, std::string>;  // group; transfer, such as "gather"

struct Piece {
  Transfer transfer;
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
    }
    end_microbatch(-1);
  }

 private:
  static bool is_begin(const Event& event) { return event.kind == EventKind::comm && is_piece_op(event.op); }

  void begin(int index, const Event& event) {
    const Piece piece = piece_of(event);
    int& previous = previous_[piece.transfer];
    const int expected = previous == last_[piece.transfer] ? 1 : previous + 1;
    if (piece.number != expected) faults_.add("{}: expected piece {} of the transfer", faults_.event(index), expected);
    previous = piece.number;
    open_[{event.group, event.op, event.pass}].push_back(index);
  }

  void need(int index, const Event& event) {
    std::vector<int>& open = open_[{event.group, event.op, event.pass}];
    if (open.empty()) return faults_.add("{}: expected a piece that has begun before", faults_.event(index));
    open.erase(open.begin());
  }

  void end_microbatch(int next) {
    for (auto& [op, open] : open_) {
      for (const int index : open) faults_.add("{}: expected a need in the same microbatch", faults_.event(index));
      open.clear();
    }
    for (auto& [transfer, previous] : previous_) {
      if (previous != 0 && previous != last_[transfer])
        faults_.add("a {} over {} ends with piece {} in microbatch {}, expected {}", transfer.second, transfer.first,
                    previous, microbatch_, last_[transfer]);
      previous = 0;
    }
    microbatch_ = next;
  }

  const Trace& trace_;
  CheckFaults& faults_;
  int microbatch_ = -1;
  std::map<Transfer, int> last_, previous_;  // number of the last piece of each transfer, and of its newest piece
  // Events of pieces for which no need event has occurred yet.
  std::map<std::tuple<std::string, std::string, Pass>, std::vector<int>> open_;
};

}  // namespace

void check_pieces(const Trace& trace, CheckFaults& faults) {
  PieceOrder(trace, faults).run();
}

}  // namespace tessera::schedule
