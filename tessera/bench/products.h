// The benchmark `products`: what every algorithm that cuBLASLt offers takes for the matrix products of a model. Where
// another than its first is faster, its line belongs into ops/gemm/gemm_table.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"

namespace tessera::bench {

struct ProductBench {
  models::ModelConfigPtr model;
  std::int64_t tp = 1;
  std::vector<std::int64_t> tokens{8192, 2048, 1024};  // of a rank and microbatch
  std::string only;                                    // products whose name holds this
  int candidates = 8, repetitions = 20;
  // Above 0: each candidate runs for so long, twice, behind as much that does not count, as in steps that keep a GPU at
  // its power limit; what saves energy is then faster. 0: short runs, as on a GPU that has rested.
  double seconds = 0;
};

struct ProductRow {
  std::string name;  // "mlp.gate_up fprop"
  std::int64_t rows = 0, cols = 0, inner = 0;
  bool left_transposed = false, right_transposed = false;
  std::vector<double> seconds;  // by candidate, bf16; the shortest of several rounds, or the mean of long ones

  int best() const;
  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(inner);
  }
};

// The products with weights that a step of the model calls in bf16, ordered by tokens; those of one weight stand side
// by side. A size that several weights, blocks or ranks have stands there once. Their seconds are not set. Pure. Errors
// (InputError): `only` leaves none.
std::vector<ProductRow> products_of(const ProductBench& bench);

// The same with their seconds, on the current GPU. Errors: as products_of; a build without CUDA (InputError).
std::vector<ProductRow> product_rows(const ProductBench& bench);

// With the lines for the table, of those that win by more than `least` of the time.
std::string product_text(const std::vector<ProductRow>& rows, double least = 0.01);

}  // namespace tessera::bench
