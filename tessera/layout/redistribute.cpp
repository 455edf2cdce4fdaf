#include "tessera/layout/redistribute.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/layout/box_index.h"
#include "tessera/layout/merge.h"

namespace tessera::layout {
namespace {

std::int64_t offset_of(const Piece& piece, const Box& box) {
  return piece.offset + (box.row - piece.box.row) * piece.stride + (box.col - piece.box.col);
}

Layout merged(Layout layout) {
  for (LocalLayout& local : layout.ranks) local.pieces = merge_adjacent(local.pieces);
  return layout;
}

// Builds both kinds of plans. Merges the pieces of the layouts first, so that transfers are as large as possible.
class Planner {
 public:
  Planner(const Layout& from, const Layout& to)
      : from_(merged(from)), to_(merged(to)), index_(index_of(from_)), sent_(from_.ranks.size()) {}

  TransferPlan copies();
  TransferPlan sums();

 private:
  void copy_piece(int target, const Piece& piece, const BoxIndex& own);
  std::vector<Holding> choose_rows(int target, const Box& strip, const std::vector<Holding>& holders);
  const Holding& choose(int target, const std::vector<const Holding*>& active) const;
  void append(int target, const Piece& piece, const Holding& holding);
  // Sorts the transfers to this target into the plan's order. The transfers to this target begin at index `first`.
  void finish_target(int target, std::size_t first);

  Layout from_, to_;
  BoxIndex index_;
  std::vector<std::int64_t> sent_;  // index: rank; number of elements sent to other ranks so far
  std::vector<Holding> found_;
  std::vector<Transfer> transfers_;
};

void Planner::append(int target, const Piece& piece, const Holding& holding) {
  const Piece& source = from_.ranks[holding.rank].pieces[holding.piece];
  transfers_.push_back({.source = holding.rank,
                        .target = target,
                        .box = holding.box,
                        .source_offset = offset_of(source, holding.box),
                        .source_stride = source.stride,
                        .target_offset = offset_of(piece, holding.box),
                        .target_stride = piece.stride});
  if (holding.rank != target) sent_[holding.rank] += holding.box.elements();
}

void Planner::finish_target(int target, std::size_t first) {
  const auto before = [](const Transfer& a, const Transfer& b) {
    return std::tie(a.target_offset, a.source) < std::tie(b.target_offset, b.source);
  };
  const auto begin = transfers_.begin() + static_cast<std::ptrdiff_t>(first);
  if (!std::is_sorted(begin, transfers_.end(), before)) std::sort(begin, transfers_.end(), before);
  // Most targets have equally many transfers, so one reservation avoids repeated growth.
  if (target == 0) transfers_.reserve(transfers_.size() * to_.ranks.size());
}

// Returns the target if it is a holder. Otherwise returns the holder that has sent the fewest elements so far. Among
// several such holders, returns the next rank after the target.
const Holding& Planner::choose(int target, const std::vector<const Holding*>& active) const {
  const int ranks = to_.size();
  const auto key = [&](const Holding* holding) {
    const int distance = (holding->rank - target + ranks) % ranks;
    return std::tuple(distance != 0, sent_[holding->rank], distance);
  };
  return **std::min_element(active.begin(), active.end(),
                            [&](const Holding* a, const Holding* b) { return key(a) < key(b); });
}

// Covers `strip` from top to bottom with parts of the holders. Every holder spans the columns of the strip.
std::vector<Holding> Planner::choose_rows(int target, const Box& strip, const std::vector<Holding>& holders) {
  std::vector<Holding> chosen;
  std::vector<const Holding*> active;
  std::size_t next = 0;
  const std::int64_t end = strip.row + strip.rows;
  const auto end_of = [](const Holding* holding) { return holding->box.row + holding->box.rows; };
  std::vector<std::int64_t> own_rows;  // first rows of the target's own parts, in descending order
  for (auto holder = holders.rbegin(); holder != holders.rend(); ++holder) {
    if (holder->rank == target) own_rows.push_back(holder->box.row);
  }
  for (std::int64_t row = strip.row; row < end;) {
    while (next < holders.size() && holders[next].box.row <= row) active.push_back(&holders[next++]);
    std::erase_if(active, [&](const Holding* holding) { return end_of(holding) <= row; });
    if (active.empty()) {
      throw Error("redistribute: rank {} needs rows [{}, {}) cols [{}, {}), which no rank holds", target, row,
                  next < holders.size() ? holders[next].box.row : end, strip.col, strip.col + strip.cols);
    }
    while (!own_rows.empty() && own_rows.back() <= row) own_rows.pop_back();
    const Holding& holder = choose(target, active);
    std::int64_t stop = end_of(&holder);
    if (holder.rank != target && !own_rows.empty()) stop = std::min(stop, own_rows.back());
    chosen.push_back({.box = {.row = row, .rows = stop - row, .col = strip.col, .cols = strip.cols},
                      .rank = holder.rank,
                      .piece = holder.piece});
    row = stop;
  }
  return chosen;
}

void Planner::copy_piece(int target, const Piece& piece, const BoxIndex& own) {
  own.find(piece.box, found_);
  std::int64_t own_elements = 0;
  for (const Holding& part : found_) own_elements += part.box.elements();
  if (own_elements == piece.box.elements()) {
    for (Holding part : found_) {
      part.rank = target;
      append(target, piece, part);
    }
    return;
  }
  index_.find(piece.box, found_);
  // Joins parts of adjacent strips that come from the same piece and have the same rows.
  std::vector<Holding> open;
  for_each_strip(piece.box, found_, [&](Range cols, const std::vector<Holding>& holders) {
    const Box strip{.row = piece.box.row, .rows = piece.box.rows, .col = cols.begin, .cols = cols.size()};
    std::vector<Holding> chosen = choose_rows(target, strip, holders);
    std::size_t i = 0;
    for (const Holding& left : open) {
      while (i < chosen.size() && chosen[i].box.row < left.box.row) ++i;
      const bool joins = i < chosen.size() && chosen[i].box.row == left.box.row &&
                         chosen[i].box.rows == left.box.rows && chosen[i].rank == left.rank &&
                         chosen[i].piece == left.piece;
      if (joins) {
        chosen[i].box.cols += chosen[i].box.col - left.box.col;
        chosen[i].box.col = left.box.col;
      } else {
        append(target, piece, left);
      }
    }
    open = std::move(chosen);
  });
  for (const Holding& part : open) append(target, piece, part);
}

TransferPlan Planner::copies() {
  for (int target = 0; target < to_.size(); ++target) {
    const std::size_t first = transfers_.size();
    const BoxIndex own = index_of({.shape = from_.shape, .ranks = {from_.ranks[target]}});
    for (const Piece& piece : to_.ranks[target].pieces) copy_piece(target, piece, own);
    finish_target(target, first);
  }
  return {.ranks = to_.size(), .adds = false, .transfers = std::move(transfers_)};
}

TransferPlan Planner::sums() {
  for (int target = 0; target < to_.size(); ++target) {
    const std::size_t first = transfers_.size();
    for (const Piece& piece : to_.ranks[target].pieces) {
      index_.find(piece.box, found_);
      const bool one_has_all =
          std::any_of(found_.begin(), found_.end(), [&](const Holding& holding) { return holding.box == piece.box; });
      const std::vector<Box> gaps = one_has_all ? std::vector<Box>{} : uncovered(piece.box, found_);
      if (!gaps.empty()) {
        const Box& gap = gaps.front();
        throw Error("redistribute_add: rank {} needs rows [{}, {}) cols [{}, {}), which no rank holds", target, gap.row,
                    gap.row + gap.rows, gap.col, gap.col + gap.cols);
      }
      for (const Holding& holding : found_) append(target, piece, holding);
    }
    finish_target(target, first);
  }
  return {.ranks = to_.size(), .adds = true, .transfers = std::move(transfers_)};
}

void require_same_tensor(const char* function, const Layout& from, const Layout& to) {
  if (from.shape != to.shape) {
    throw Error("{}: from a tensor of {} x {} to {} x {}, expected the same shape", function, from.shape.rows,
                from.shape.cols, to.shape.rows, to.shape.cols);
  }
  if (from.size() != to.size()) {
    throw Error("{}: from {} ranks to {}, expected the same ranks", function, from.size(), to.size());
  }
  validate(from);
  validate(to);
}

// Terms of a sum cannot be moved between ranks, so every rank must keep exactly its own elements.
TransferPlan keep_parts(const Layout& from, const Layout& to) {
  TransferPlan plan = redistribute({.shape = from.shape, .ranks = from.ranks}, {.shape = to.shape, .ranks = to.ranks});
  for (const Transfer& transfer : plan.transfers) {
    if (transfer.source == transfer.target) continue;
    throw Error("redistribute: rank {} of a partial layout needs elements that only rank {} holds", transfer.target,
                transfer.source);
  }
  for (int rank = 0; rank < from.size(); ++rank) {
    const std::int64_t held = from.ranks[rank].covered(), kept = to.ranks[rank].covered();
    if (held == kept) continue;
    throw Error("redistribute: rank {} of a partial layout keeps {} of its {} elements, expected all", rank, kept,
                held);
  }
  return plan;
}

}  // namespace

std::int64_t TransferPlan::elements_sent(int rank) const {
  std::int64_t elements = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.source == rank && transfer.target != rank) elements += transfer.box.elements();
  }
  return elements;
}

std::int64_t TransferPlan::elements_received(int rank) const {
  std::int64_t elements = 0;
  for (const Transfer& transfer : std::ranges::equal_range(transfers, rank, {}, &Transfer::target)) {
    if (transfer.source != rank) elements += transfer.box.elements();
  }
  return elements;
}

TransferPlan redistribute(const Layout& from, const Layout& to) {
  if (from.state == State::partial) {
    if (to.state != State::partial) return redistribute_add(from, to);
    require_same_tensor("redistribute", from, to);
    return keep_parts(from, to);
  }
  if (to.state == State::partial)
    throw Error("redistribute: the target layout is partial, but the source layout is not");
  require_same_tensor("redistribute", from, to);
  return Planner(from, to).copies();
}

TransferPlan redistribute_add(const Layout& compute, const Layout& storage) {
  if (storage.state == State::partial) throw Error("redistribute_add: the storage layout is partial, expected sums");
  require_same_tensor("redistribute_add", compute, storage);
  return Planner(compute, storage).sums();
}

}  // namespace tessera::layout
