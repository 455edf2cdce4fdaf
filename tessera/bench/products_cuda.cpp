#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/bench/kernels_clock.h"
#include "tessera/bench/products.h"
#include "tessera/ops/gemm_device.h"

namespace tessera::bench {
namespace {

struct Weight {
  std::string name;
  std::int64_t out = 0, in = 0;
};
std::vector<Weight> weights_of(const ProductBench& bench) {
  const models::DecoderConfig& model = bench.model;
  const std::int64_t q = model.num_heads * model.head_dim / bench.tp,
                     kv = model.num_kv_heads * model.head_dim / bench.tp;
  const std::int64_t ffn = model.intermediate_size / bench.tp;
  return {{"qkv", q + 2 * kv, model.hidden_size},
          {"attention out", model.hidden_size, q},
          {"gate_up", 2 * ffn, model.hidden_size},
          {"down", model.hidden_size, ffn},
          {"output", model.vocab_size / bench.tp, model.hidden_size}};
}

// y = x w^T, dx = dy w, dw = dy^T x: as ops/gemm.cpp makes them.
std::vector<ProductRow> products_of(const Weight& weight, std::int64_t tokens) {
  return {{weight.name + " fprop", tokens, weight.out, weight.in, false, true, {}},
          {weight.name + " dgrad", tokens, weight.in, weight.out, false, false, {}},
          {weight.name + " wgrad", weight.out, weight.in, tokens, true, false, {}}};
}

class Measurement {
 public:
  explicit Measurement(const ProductBench& bench)
      : bench_(bench), scratch_(at::empty({ops::kProductScratch}, options(at::kByte))) {}

  std::vector<double> seconds(const ProductRow& row) {
    const at::Tensor left = at::randn({row.rows * row.inner}, options(at::kBFloat16));
    const at::Tensor right = at::randn({row.inner * row.cols}, options(at::kBFloat16));
    const at::Tensor result = at::empty({row.rows * row.cols}, options(at::kBFloat16));
    const auto multiply = [&](int candidate) {
      ops::cuda::multiply({.rows = row.rows,
                           .cols = row.cols,
                           .inner = row.inner,
                           .type = quant::DType::bf16,
                           .result_type = quant::DType::bf16,
                           .left = left.const_data_ptr(),
                           .left_transposed = row.left_transposed,
                           .right = right.const_data_ptr(),
                           .right_transposed = row.right_transposed,
                           .result = result.mutable_data_ptr()},
                          scratch_.mutable_data_ptr(), at::cuda::getCurrentCUDAStream(), candidate);
    };
    const auto candidates = static_cast<std::size_t>(count_candidates(multiply));
    if (bench_.seconds > 0) return sustained(candidates, multiply);
    std::vector<double> best(candidates, 1e9);
    // In turns: a GPU that grows warm slows all alike.
    for (int round = 0; round < 3; ++round)
      for (std::size_t candidate = 0; candidate < best.size(); ++candidate) {
        const double taken =
            clock_->seconds_of(bench_.repetitions, [&](int) { multiply(static_cast<int>(candidate)); });
        best[candidate] = std::min(best[candidate], taken / bench_.repetitions);
      }
    return best;
  }

 private:
  template <typename Multiply>
  std::vector<double> sustained(std::size_t candidates, Multiply multiply) {
    constexpr int rounds = 2;
    std::vector<double> means(candidates);
    for (int round = 0; round < rounds; ++round)
      for (std::size_t candidate = 0; candidate < candidates; ++candidate) {
        run_for(bench_.seconds, candidate, multiply);
        means[candidate] += run_for(bench_.seconds, candidate, multiply) / rounds;
      }
    return means;
  }
  // Seconds of one product.
  template <typename Multiply>
  double run_for(double seconds, std::size_t candidate, Multiply multiply) {
    double taken = 0;
    int calls = 0;
    for (; taken < seconds; calls += bench_.repetitions)
      taken += clock_->seconds_of(bench_.repetitions, [&](int) { multiply(static_cast<int>(candidate)); });
    return taken / calls;
  }

  static at::TensorOptions options(at::ScalarType type) { return at::TensorOptions().device(at::kCUDA).dtype(type); }
  template <typename Multiply>
  int count_candidates(Multiply multiply) const {
    for (int candidate = 0; candidate < bench_.candidates; ++candidate) try {
        multiply(candidate);
      } catch (const Error&) {
        return candidate;
      }
    return bench_.candidates;
  }

  const ProductBench& bench_;
  const std::unique_ptr<KernelClock> clock_ = make_event_clock();
  at::Tensor scratch_;
};

}  // namespace

std::vector<ProductRow> product_rows(const ProductBench& bench) {
  Measurement measurement(bench);
  std::vector<ProductRow> rows;
  for (const std::int64_t tokens : bench.tokens)
    for (const Weight& weight : weights_of(bench))
      for (ProductRow& row : products_of(weight, tokens)) {
        if (row.name.find(bench.only) == std::string::npos) continue;
        row.seconds = measurement.seconds(row);
        rows.push_back(std::move(row));
      }
  if (rows.empty()) throw InputError("--only {}: no product's name holds that", bench.only);
  return rows;
}

}  // namespace tessera::bench
