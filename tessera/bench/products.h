// The benchmark `products`: times of all cuBLASLt algorithms for a model's matrix products. If another algorithm than
// the first is faster, the product's line belongs in ops/gemm/gemm_table.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"

namespace tessera::bench {

struct ProductBench {
  models::ModelConfigPtr model;
  std::int64_t tp = 1;
  std::vector<std::int64_t> tokens{8192, 2048, 1024};  // per rank and microbatch
  std::string only;                                    // only products whose name contains this
  int candidates = 8, repetitions = 20;
  // Above 0: each candidate runs for this time, twice, after a warm-up of the same length. Long runs measure a GPU at
  // its power limit, as in training, where an algorithm that saves energy is faster. 0: short runs, as on an idle GPU.
  double seconds = 0;
};

struct ProductRow {
  std::string name;  // "mlp.gate_up fprop"
  std::int64_t rows = 0, cols = 0, inner = 0;
  bool left_transposed = false, right_transposed = false;
  std::vector<double> seconds;  // by candidate, bf16; the shortest of several rounds, or the mean of a long one

  int best() const;
  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(inner);
  }
};

// Returns the bf16 products with weights in a step of the model, ordered by tokens. Products of one weight are
// adjacent. A size that several weights, blocks or ranks have is listed once. `seconds` is not set. Pure. Throws
// InputError if `only` matches no product.
std::vector<ProductRow> products_of(const ProductBench& bench);

// Returns the products with their seconds on the current GPU. Throws the errors of products_of, and InputError in a
// build without CUDA.
std::vector<ProductRow> product_rows(const ProductBench& bench);

// Includes the table's lines for products that gain more than the fraction `least` of their time.
std::string product_text(const std::vector<ProductRow>& rows, double least = 0.01);

}  // namespace tessera::bench
