#include "tessera/bench/products.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::bench {

int ProductRow::best() const {
  return static_cast<int>(std::ranges::min_element(seconds) - seconds.begin());
}

std::string product_text(const std::vector<ProductRow>& rows, double least) {
  std::string text, table;
  for (const ProductRow& row : rows) {
    const int best = row.best();
    const double first_seconds = row.seconds.front(), best_seconds = row.seconds[static_cast<std::size_t>(best)];
    text += fmt::format("  {:16} [{:6}, {:6}] x {:6}  {:7.3f} ms {:6.1f} TFLOP/s, candidate {} of {}: x {:.3f}\n",
                        row.name, row.rows, row.cols, row.inner, first_seconds * 1e3,
                        row.flops() / first_seconds / 1e12, best, row.seconds.size(), first_seconds / best_seconds);
    if (best_seconds < (1 - least) * first_seconds)
      table += fmt::format("    GemmChoice{{{}, {}, {}, {}, {}, {}}},\n", row.rows, row.cols, row.inner,
                           row.left_transposed, row.right_transposed, best);
  }
  return text + "for ops/gemm_table.h:\n" + table;
}

}  // namespace tessera::bench
