// The benchmark `products`: times of all cuBLASLt algorithms for a model's matrix products. If an algorithm other than
// the first is faster, the product needs a line in ops/gemm/gemm_table.h.
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
  std::string only;  // text that the names of the measured products contain; empty: all products
  int candidates = 8, repetitions = 20;
  // Above 0: each candidate runs for this time, twice, after a warm-up of the same length. Long runs measure a GPU at
  // its power limit, as in training. At this limit, an algorithm that saves energy is faster. 0: short runs, as on an
  // idle GPU.
  double seconds = 0;
};

struct ProductRow {
  std::string name;  // "mlp.gate_up fprop"
  std::int64_t rows = 0, cols = 0, inner = 0;
  bool left_transposed = false, right_transposed = false;
  // By candidate: the time of the shortest of several short runs, or the mean time in a long run.
  std::vector<double> seconds;

  int best() const;
  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(inner);
  }
};

// Returns the products with weights in a step of the model, in bf16. The products are ordered by tokens, and products
// of one weight are adjacent. Products of equal size are listed once. ProductRow::seconds is empty. Pure. Throws
// InputError if `only` matches no product.
std::vector<ProductRow> products_of(const ProductBench& bench);

// Returns the products with their times on the current GPU. Throws the errors of products_of. Only a build with CUDA
// defines this function.
std::vector<ProductRow> product_rows(const ProductBench& bench);

// Returns the results as text. A product gets a line for ops/gemm/gemm_table.h if its best candidate saves more than
// the fraction `least` of the first candidate's time.
std::string product_text(const std::vector<ProductRow>& rows, double least = 0.01);

}  // namespace tessera::bench
