// Redistributes a tensor between two layouts: from parts of rows to parts of columns, and to a layout that gives one
// rank nothing. Four ranks are threads of this process.
#include <cstdio>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/comm/redistribution.h"
#include "tessera/layout/dense.h"

namespace {

using namespace tessera;

constexpr int kRanks = 4;
constexpr layout::Shape kShape{10, 7};  // neither size is divisible by four

// Divides `size` rows or columns over the ranks as evenly as possible.
std::vector<std::vector<layout::Range>> even_parts(std::int64_t size, int ranks) {
  std::vector<std::vector<layout::Range>> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back({layout::even_part(size, rank, ranks)});
  return parts;
}

// Calls visit(place in the local buffer, value of the element) for each element of a rank's part. The tensor's value at
// (row, column) is 100 * row + column.
template <typename Visit>
void visit_elements(const layout::LocalLayout& local, Visit visit) {
  for (const layout::Piece& piece : local.pieces)
    for (std::int64_t row = 0; row < piece.box.rows; ++row)
      for (std::int64_t col = 0; col < piece.box.cols; ++col)
        visit(static_cast<std::size_t>(piece.offset + row * piece.stride + col),
              static_cast<float>(100 * (piece.box.row + row) + piece.box.col + col));
}

// Moves this rank's part from one layout to the other. Returns the number of wrong elements.
int redistribute(comm::Communicator& group, const layout::Layout& from, const layout::Layout& to) {
  const auto rank = static_cast<std::size_t>(group.rank());
  std::vector<float> source(static_cast<std::size_t>(from.ranks[rank].size));
  std::vector<float> target(static_cast<std::size_t>(to.ranks[rank].size), -1.0f);
  visit_elements(from.ranks[rank], [&](std::size_t at, float value) { source[at] = value; });

  const comm::Redistribution plan(from, to, group.rank());
  plan.run(group, source.data(), target.data(), quant::DType::fp32).synchronize();

  int wrong = 0;
  visit_elements(to.ranks[rank], [&](std::size_t at, float value) { wrong += target[at] == value ? 0 : 1; });
  std::printf("rank %zu: %zu elements -> %zu elements by %s, %lld bytes from other ranks, %d wrong\n", rank,
              source.size(), target.size(), std::string(layout::name_of(plan.collective().kind)).c_str(),
              static_cast<long long>(plan.received_bytes(quant::DType::fp32)), wrong);
  return wrong;
}

}  // namespace

int main() {
  const layout::Layout rows = layout::rows_by_rank(kShape, even_parts(kShape.rows, kRanks));
  const layout::Layout columns = layout::cols_by_rank(kShape, even_parts(kShape.cols, kRanks));
  const layout::Layout whole = layout::replicated(kShape, kRanks);
  const layout::Layout uneven = layout::rows_by_rank(kShape, {{{0, 6}}, {}, {{6, 7}, {9, 10}}, {{7, 9}}});

  std::vector<int> wrong(kRanks);
  comm::run_local(kRanks, {}, [&](comm::World& world) {
    const auto group = world.make_group("all", {{0, 1, 2, 3}});
    int& own = wrong[static_cast<std::size_t>(world.rank())];
    own += redistribute(*group, rows, columns);
    own += redistribute(*group, rows, whole);
    own += redistribute(*group, columns, uneven);
  });
  int total = 0;
  for (const int count : wrong) total += count;
  return total == 0 ? 0 : 1;
}
