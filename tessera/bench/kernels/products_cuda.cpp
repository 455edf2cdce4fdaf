#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/bench/kernels/kernels_clock.h"
#include "tessera/bench/kernels/products.h"
#include "tessera/ops/gemm/gemm_device.h"

namespace tessera::bench {
namespace {

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
    // Candidates run in alternation, so that a GPU that becomes warm slows all candidates equally.
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
  // Returns the seconds of one product.
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
  std::vector<ProductRow> rows = products_of(bench);
  Measurement measurement(bench);
  for (ProductRow& row : rows) row.seconds = measurement.seconds(row);
  return rows;
}

}  // namespace tessera::bench
