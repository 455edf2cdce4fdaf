#include "tessera/comm/ordered_addition.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/operation.h"
#include "tessera/layout/box_index.h"
#include "tessera/layout/merge.h"

namespace tessera::comm {
namespace {

using layout::Box, layout::Holding, layout::Transfer;
using quant::DType;

// Divides a strip of columns into boxes from top to bottom. All elements of a box are held by the same ranks. Calls
// visit(box, holders) for each box that has holders.
template <typename Visit>
void for_each_run_of_rows(layout::Range cols, const std::vector<Holding>& parts, Visit visit) {
  std::vector<std::int64_t> cuts;
  for (const Holding& part : parts) cuts.insert(cuts.end(), {part.box.row, part.box.row + part.box.rows});
  std::ranges::sort(cuts);
  cuts.erase(std::ranges::unique(cuts).begin(), cuts.end());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<Holding> holders;
    for (const Holding& part : parts)
      if (part.box.row <= cuts[i] && part.box.row + part.box.rows >= cuts[i + 1]) holders.push_back(part);
    if (holders.empty()) continue;
    std::ranges::sort(holders, {}, &Holding::rank);
    visit(Box{.row = cuts[i], .rows = cuts[i + 1] - cuts[i], .col = cols.begin, .cols = cols.size()}, holders);
  }
}

}  // namespace

OrderedAddition::OrderedAddition(const layout::Layout& from, const layout::Layout& to, int rank, Addends addends)
    : addends_(std::move(addends)), rank_(rank) {
  const auto ranks = static_cast<std::size_t>(from.size());
  TESSERA_CHECK(addends_.members.size() == ranks && addends_.types.size() == ranks,
                "addition: expected members and types of {} ranks, got {} and {}", ranks, addends_.members.size(),
                addends_.types.size());
  const auto out_of_order = std::ranges::adjacent_find(addends_.members, std::greater_equal());
  TESSERA_CHECK(out_of_order == addends_.members.end(),
                "addition: the part of rank {} would be added before that of rank {}, expected ascending ranks",
                *out_of_order, *std::next(out_of_order));
  TESSERA_CHECK(rank >= 0 && rank < from.size(), "addition: expected a rank in [0, {}), got {}", ranks, rank);
  const layout::TransferPlan plan = layout::redistribute_add(from, to);
  make_messages(plan);
  make_cells(plan, to.ranks[static_cast<std::size_t>(rank)]);
}

void OrderedAddition::make_messages(const layout::TransferPlan& plan) {
  BoxMessages messages = box_messages(plan, rank_);
  for (BoxMessage& message : messages.sends) sends_.push_back({std::move(message)});
  for (BoxMessage& message : messages.receives)
    if (message.peer != rank_) receives_.push_back({std::move(message)});
  std::vector<std::pair<Message*, DType>> stored;  // messages that use the scratch
  for (Message& message : sends_)
    if (!message.run) stored.emplace_back(&message, own_type());
  for (Message& message : receives_) {
    const DType type = addends_.types[static_cast<std::size_t>(message.peer)];
    received_ += static_cast<std::int64_t>(bytes_of(message.elements, type));
    stored.emplace_back(&message, type);
  }
  // Messages with wide elements come first, so that all messages are aligned without gaps.
  std::ranges::stable_sort(stored, std::greater(), [](const auto& entry) { return quant::size_of(entry.second); });
  for (auto& [message, type] : stored) {
    message->place = scratch_;
    scratch_ += bytes_of(message->elements, type);
  }
}

void OrderedAddition::make_cells(const layout::TransferPlan& plan, const layout::LocalLayout& target) {
  // Index: transfer. The address on this rank of the transfer's source part.
  std::vector<Term> terms(plan.transfers.size());
  std::map<int, std::size_t> places;
  for (const Message& message : receives_) places[message.peer] = message.place;
  // Index: peer; number of elements before the next transfer in the message of this peer.
  std::map<int, std::int64_t> before;
  std::vector<Holding> holdings;
  for (std::size_t i = 0; i < plan.transfers.size(); ++i) {
    const Transfer& transfer = plan.transfers[i];
    if (transfer.target != rank_) continue;
    const bool is_own = transfer.source == rank_;
    terms[i] = {.type = addends_.types[static_cast<std::size_t>(transfer.source)],
                .is_own = is_own,
                .place = is_own ? 0 : places.at(transfer.source),
                .offset = is_own ? transfer.source_offset : before[transfer.source],
                .stride = is_own ? transfer.source_stride : transfer.box.cols};
    if (!is_own) before[transfer.source] += transfer.box.elements();
    holdings.push_back({.box = transfer.box, .rank = transfer.source, .piece = static_cast<int>(i)});
  }
  const layout::BoxIndex index(std::move(holdings));
  std::vector<Holding> found;
  for (const layout::Piece& piece : layout::merge_adjacent(target.pieces)) {
    index.find(piece.box, found);
    layout::for_each_strip(piece.box, found, [&](layout::Range cols, const std::vector<Holding>& parts) {
      for_each_run_of_rows(cols, parts, [&](const Box& box, const std::vector<Holding>& holders) {
        Cell cell{.rows = box.rows,
                  .cols = box.cols,
                  .offset = piece.offset + (box.row - piece.box.row) * piece.stride + (box.col - piece.box.col),
                  .stride = piece.stride};
        for (const Holding& holder : holders) {
          const Box& whole = plan.transfers[static_cast<std::size_t>(holder.piece)].box;
          Term term = terms[static_cast<std::size_t>(holder.piece)];
          term.offset += (box.row - whole.row) * term.stride + (box.col - whole.col);
          cell.terms.push_back(term);
        }
        if (cells_.empty() || !join(cells_.back(), cell)) cells_.push_back(std::move(cell));
      });
    });
  }
}

bool OrderedAddition::Cell::is_dense() const {
  const auto holds = [&](std::int64_t any_stride) { return rows == 1 || any_stride == cols; };
  return holds(stride) && std::ranges::all_of(terms, [&](const Term& term) { return holds(term.stride); });
}

// Joins two cells if `next` follows `cell` densely in the target and in every part. Returns whether the cells were
// joined.
bool OrderedAddition::join(Cell& cell, const Cell& next) {
  const std::int64_t elements = cell.rows * cell.cols;
  if (!cell.is_dense() || !next.is_dense() || next.cols != cell.cols || next.offset != cell.offset + elements ||
      next.terms.size() != cell.terms.size())
    return false;
  for (std::size_t i = 0; i < cell.terms.size(); ++i) {
    Term moved = cell.terms[i];
    moved.offset += elements;
    moved.stride = next.terms[i].stride;
    if (moved != next.terms[i]) return false;
  }
  cell.rows += next.rows;
  cell.stride = cell.cols;
  for (Term& term : cell.terms) term.stride = cell.cols;
  return true;
}

void OrderedAddition::add_messages(Communicator& group, const void* source, std::byte* scratch,
                                   std::vector<Send>& sends, std::vector<Receive>& receives) const {
  const DType type = own_type();
  for (const Message& message : sends_) {
    const void* data = scratch + message.place;
    if (message.run)
      data = advance(source, *message.run, type);
    else
      group.lane().run([&message, &kernels = group.kernels(), source, scratch, type] {
        pack_boxes(kernels, message.transfers, source, scratch + message.place, type);
      });
    sends.push_back({.peer = addends_.members[static_cast<std::size_t>(message.peer)],
                     .data = data,
                     .bytes = bytes_of(message.elements, type)});
  }
  for (const Message& message : receives_) {
    const auto peer = static_cast<std::size_t>(message.peer);
    receives.push_back({.peer = addends_.members[peer],
                        .data = scratch + message.place,
                        .bytes = bytes_of(message.elements, addends_.types[peer])});
  }
}

// Consecutive parts of the same type are added in one call.
void OrderedAddition::add_rows(const quant::Kernels& kernels, const Cell& cell, std::int64_t row, std::int64_t rows,
                               const std::byte* source, const std::byte* scratch, std::byte* target, Start start,
                               double* squares) const {
  bool accumulate = start == Start::target;
  void* sum = advance(static_cast<void*>(target), cell.offset + row * cell.stride, addends_.accumulator);
  std::vector<const void*> parts;
  for (std::size_t i = 0; i < cell.terms.size(); ++i) {
    const Term& term = cell.terms[i];
    const std::byte* data = term.is_own ? source : scratch + term.place;
    parts.push_back(advance(static_cast<const void*>(data), term.offset + row * term.stride, term.type));
    const bool is_last = i + 1 == cell.terms.size();
    if (!is_last && cell.terms[i + 1].type == term.type) continue;
    if (is_last && squares != nullptr)
      kernels.ordered_sum_squares(sum, addends_.accumulator, accumulate, parts, term.type, rows, cell.cols,
                                  squares + cell.offset / cell.cols + row);
    else
      kernels.ordered_sum(sum, addends_.accumulator, accumulate, parts, term.type, rows * cell.cols);
    parts.clear();
    accumulate = true;
  }
}

void OrderedAddition::sum(const quant::Kernels& kernels, const void* source, const std::byte* scratch, void* target,
                          Start start, double* squares) const {
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  for (const Cell& cell : cells_) {
    if (cell.is_dense()) {
      add_rows(kernels, cell, 0, cell.rows, from, scratch, to, start, squares);
      continue;
    }
    for (std::int64_t row = 0; row < cell.rows; ++row)
      add_rows(kernels, cell, row, 1, from, scratch, to, start, squares);
  }
}

void OrderedAddition::round(const quant::Kernels& kernels, const void* sums, void* target, DType type) const {
  for (const Cell& cell : cells_) {
    const std::int64_t runs = cell.stride == cell.cols ? 1 : cell.rows, elements = cell.rows * cell.cols / runs;
    for (std::int64_t run = 0; run < runs; ++run) {
      const std::int64_t at = cell.offset + run * cell.stride;
      kernels.cast(advance(sums, at, addends_.accumulator), addends_.accumulator, advance(target, at, type), type,
                   elements);
    }
  }
}

}  // namespace tessera::comm
