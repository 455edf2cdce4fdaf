// A slow and simple implementation of layouts, plans and collectives. It processes one element at a time, in vectors.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tessera/layout/redistribute.h"

namespace tessera::layout::testing {

// Local buffers, one per rank.
template <typename T>
using Buffers = std::vector<std::vector<T>>;

// Calls visit(rank, index in the local buffer, logical row, logical column) for every element of the pieces.
template <typename Visit>
void for_each_element(const Layout& layout, Visit visit) {
  for (int rank = 0; rank < layout.size(); ++rank) {
    for (const Piece& piece : layout.ranks[rank].pieces) {
      for (std::int64_t r = 0; r < piece.box.rows; ++r) {
        for (std::int64_t c = 0; c < piece.box.cols; ++c) {
          visit(rank, piece.offset + r * piece.stride + c, piece.box.row + r, piece.box.col + c);
        }
      }
    }
  }
}

// Returns buffers of the layout's sizes. Elements of pieces are value(rank, row, col); all other elements are
// `padding`.
template <typename T, typename Value>
Buffers<T> fill(const Layout& layout, T padding, Value value) {
  Buffers<T> buffers;
  for (const LocalLayout& local : layout.ranks) buffers.emplace_back(static_cast<std::size_t>(local.size), padding);
  for_each_element(layout, [&](int rank, std::int64_t at, std::int64_t row, std::int64_t col) {
    buffers[rank].at(static_cast<std::size_t>(at)) = value(rank, row, col);
  });
  return buffers;
}

// Returns the ranks that hold each logical element, in ascending order. The elements are in row-major order.
std::vector<std::vector<int>> holders(const Layout& layout);

// The source of an element of a target's buffer.
struct Origin {
  int source = 0;
  std::int64_t at = 0;  // index of the element in the buffer of the source
  bool operator==(const Origin&) const = default;
};
// For each target, and for each element that the plan writes: the origins in the order of their source ranks.
using Origins = std::vector<std::map<std::int64_t, std::vector<Origin>>>;
Origins origins(const TransferPlan& plan);

// Executes a plan. Sums are in rank order, in type T.
template <typename T>
void run_plan(const TransferPlan& plan, const Buffers<T>& source, Buffers<T>& target) {
  const Origins all = origins(plan);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [at, parts] : all[rank]) {
      T sum{};
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const T part = source[parts[i].source].at(static_cast<std::size_t>(parts[i].at));
        sum = i == 0 ? part : sum + part;
      }
      target[rank].at(static_cast<std::size_t>(at)) = sum;
    }
  }
}

// Executes a recognised collective as a communicator does: parts are dense, from the start of each buffer. Uses the
// plan only for moves within ranks and for the counts of all_to_all.
template <typename T>
void run_collective(const Collective& collective, const TransferPlan& plan, const Buffers<T>& source,
                    Buffers<T>& target);

// Returns the expected result of `recognise`. Compares the plan with the definition of each collective, element by
// element.
Collective recognise_slowly(const TransferPlan& plan);

template <typename T>
T sum_over_ranks(const Buffers<T>& source, std::size_t at) {
  T sum = source[0].at(at);
  for (std::size_t rank = 1; rank < source.size(); ++rank) sum = sum + source[rank].at(at);
  return sum;
}

template <typename T>
void run_collective(const Collective& collective, const TransferPlan& plan, const Buffers<T>& source,
                    Buffers<T>& target) {
  const std::size_t ranks = source.size();
  const auto& counts = collective.counts;
  std::size_t start = 0;
  switch (collective.kind) {
    case CollectiveKind::all_gather:
      for (std::size_t s = 0; s < ranks; ++s) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(counts.at(s)); ++i, ++start) {
          for (std::size_t t = 0; t < ranks; ++t) target[t].at(start) = source[s].at(i);
        }
      }
      return;
    case CollectiveKind::reduce_scatter:
      for (std::size_t t = 0; t < ranks; ++t) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(counts.at(t)); ++i, ++start) {
          target[t].at(i) = sum_over_ranks(source, start);
        }
      }
      return;
    case CollectiveKind::all_reduce:
      for (std::size_t i = 0; i < static_cast<std::size_t>(counts.at(0)); ++i) {
        for (std::size_t t = 0; t < ranks; ++t) target[t].at(i) = sum_over_ranks(source, i);
      }
      return;
    case CollectiveKind::all_to_all: {
      std::vector<std::size_t> sent(ranks), received(ranks);
      std::map<std::pair<int, int>, std::int64_t> elements;  // counts by (target, source), in the order of the buffers
      for (const Transfer& t : plan.transfers) elements[{t.target, t.source}] += t.box.elements();
      for (const auto& [pair, count] : elements) {
        for (std::int64_t i = 0; i < count; ++i) {
          target[pair.first].at(received[pair.first]++) = source[pair.second].at(sent[pair.second]++);
        }
      }
      return;
    }
    default:
      run_plan(plan, source, target);
  }
}

}  // namespace tessera::layout::testing
