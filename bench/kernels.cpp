// The operators one by one: time, and arithmetic or memory rate, at the demo model's sizes and at larger ones.
// Elementwise operators also as a share of the memory copy speed measured in the same run on as many bytes.
//
//   bench_kernels [THREADS]      intra-op threads of the matrix products and of attention (default 1)
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/convert.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/embedding.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/initialise.h"
#include "tessera/ops/rms_norm.h"
#include "tessera/ops/rope.h"
#include "tessera/ops/swiglu.h"
#include "tessera/ops/tensor.h"

namespace {

using namespace tessera;
using base::DType;

struct Sizes {
  const char* name;
  std::int64_t tokens, hidden, ffn, vocabulary, head_dim, q_heads, kv_heads, parameters;
};
constexpr Sizes kSizes[] = {{"demo", 128, 256, 688, 4096, 32, 8, 4, 5'000'000},
                            {"large", 1024, 2048, 5632, 16384, 128, 16, 4, 50'000'000}};

// Seconds of one call: the best of at least three, and of as many as fit in a fifth of a second.
double seconds_of(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  work();
  double best = 1e9, spent = 0;
  for (int i = 0; i < 3 || spent < 0.2; ++i) {
    const auto begin = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

class Report {
 public:
  explicit Report(std::string title) : title_(std::move(title)) {}
  void arithmetic(const char* name, double operations, const std::function<void()>& work) const {
    const double seconds = seconds_of(work);
    std::printf("%-12s %-22s %10.1f us %8.1f GFLOP/s\n", title_.c_str(), name, seconds * 1e6,
                operations / seconds / 1e9);
  }
  // `bytes` read plus written.
  void memory(const char* name, double bytes, const std::function<void()>& work) const {
    const double seconds = seconds_of(work), copy = copy_rate(bytes), rate = bytes / seconds;
    std::printf("%-12s %-22s %10.1f us %8.1f GB/s %5.0f %% of copy\n", title_.c_str(), name, seconds * 1e6, rate / 1e9,
                100 * rate / copy);
  }

 private:
  static double copy_rate(double bytes) {
    base::Buffer from(static_cast<std::size_t>(bytes / 2)), to(from.size());
    from.fill_zero();
    to.fill_zero();
    return bytes / seconds_of([&] { std::memcpy(to.data(), from.data(), from.size()); });
  }
  std::string title_;
};

at::Tensor filled(at::IntArrayRef shape, DType type, std::uint64_t seed) {
  at::Tensor tensor = ops::make(shape, ops::to_scalar_type(type));
  const std::int64_t count = tensor.numel();
  ops::fill_normal(
      {.seed = seed, .name = "bench", .standard_deviation = 1, .logical_cols = count, .rows = 1, .cols = count},
      tensor.mutable_data_ptr(), type);
  return tensor;
}

// 0, step, 2 step, ... below `limit`, again and again.
at::Tensor ids(std::int64_t count, std::int64_t step, std::int64_t limit) {
  at::Tensor tensor = ops::make({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) tensor.mutable_data_ptr<std::int64_t>()[i] = i * step % limit;
  return tensor;
}

void measure_gemm(const Report& report, const Sizes& s, DType type) {
  const at::Tensor x = filled({s.tokens, s.hidden}, type, 1), w = filled({2 * s.ffn, s.hidden}, type, 2);
  const at::Tensor dy = filled({s.tokens, 2 * s.ffn}, type, 3);
  at::Tensor dw = ops::make(w.sizes(), ops::to_scalar_type(base::accumulator_of(type)));
  const double operations = 2.0 * static_cast<double>(s.tokens * s.hidden * 2 * s.ffn);
  report.arithmetic("gemm_fprop", operations, [&] { ops::gemm_fprop(x, w); });
  report.arithmetic("gemm_dgrad", operations, [&] { ops::gemm_dgrad(dy, w); });
  report.arithmetic("gemm_wgrad", operations, [&] { ops::gemm_wgrad(dy, x, dw, false); });
}

void measure_token_ops(const Report& report, const Sizes& s, DType type) {
  const at::Tensor x = filled({s.tokens, s.hidden}, type, 1), weight = filled({s.hidden}, type, 2);
  const ops::RmsNorm norm = ops::rms_norm_forward(x, x, weight, 1e-5);
  at::Tensor dweight = ops::make({s.hidden}, ops::to_scalar_type(base::accumulator_of(type)));
  const double row = static_cast<double>(x.nbytes());
  report.memory("rms_norm_forward", 4 * row, [&] { ops::rms_norm_forward(x, x, weight, 1e-5); });
  report.memory("rms_norm_backward", 4 * row,
                [&] { ops::rms_norm_backward(x, x, norm.sum, norm.rstd, weight, dweight, false); });

  const at::Tensor gate_up = filled({s.tokens, 2 * s.ffn}, type, 3), dout = filled({s.tokens, s.ffn}, type, 4);
  const double wide = static_cast<double>(dout.nbytes());
  report.memory("swiglu_forward", 3 * wide, [&] { ops::swiglu_forward(gate_up); });
  report.memory("swiglu_backward", 5 * wide, [&] { ops::swiglu_backward(dout, gate_up); });

  const at::Tensor qkv = filled({s.tokens, (s.q_heads + 2 * s.kv_heads) * s.head_dim}, type, 5);
  const at::Tensor positions = ids(s.tokens, 1, s.tokens);
  const ops::RopeTable table = ops::make_rope_table(s.tokens, s.head_dim, 1e4, {}, ops::to_scalar_type(type));
  const auto forward = [&] {
    return ops::split_rope_forward(qkv, positions, table, s.q_heads, s.kv_heads, s.head_dim);
  };
  const ops::Qkv parts = forward();
  const double stacked = 2 * static_cast<double>(qkv.nbytes());
  report.memory("split_rope_forward", stacked, [&] { forward(); });
  report.memory("split_rope_backward", stacked, [&] { ops::split_rope_backward(parts, positions, table); });
}

void measure_attention(const Report& report, const Sizes& s, DType type) {
  const ops::Qkv qkv{.q = filled({s.tokens, s.q_heads, s.head_dim}, type, 1),
                     .k = filled({s.tokens, s.kv_heads, s.head_dim}, type, 2),
                     .v = filled({s.tokens, s.kv_heads, s.head_dim}, type, 3)};
  ops::AttentionShape shape{.batch = 1,
                            .seq_len = s.tokens,
                            .kv_of_q = {},
                            .cu_seqlens = {},
                            .scale = 1 / std::sqrt(static_cast<double>(s.head_dim))};
  for (std::int64_t head = 0; head < s.q_heads; ++head)
    shape.kv_of_q.push_back(static_cast<int>(head * s.kv_heads / s.q_heads));
  const at::Tensor dout = filled({s.tokens, s.q_heads * s.head_dim}, type, 4);
  const ops::Attention forward = ops::attention_forward(qkv, shape);
  const double product = static_cast<double>(s.tokens * s.tokens * s.q_heads * s.head_dim);  // causal: half of 2 s s d
  report.arithmetic("attention_forward", 2 * product, [&] { ops::attention_forward(qkv, shape); });
  report.arithmetic("attention_backward", 5 * product, [&] { ops::attention_backward(dout, qkv, forward, shape); });
}

void measure_vocabulary_ops(const Report& report, const Sizes& s, DType type) {
  const DType wide = base::accumulator_of(type);
  at::Tensor logits = filled({s.tokens, s.vocabulary}, type, 1);
  const at::Tensor targets = ids(s.tokens, 97, s.vocabulary), maximum = ops::cross_entropy_maximum(logits);
  const at::Tensor sums = ops::cross_entropy_sums(logits, maximum, targets, 0);
  const double all = static_cast<double>(logits.nbytes());
  report.memory("cross_entropy_maximum", all, [&] { ops::cross_entropy_maximum(logits); });
  report.memory("cross_entropy_sums", all, [&] { ops::cross_entropy_sums(logits, maximum, targets, 0); });
  report.memory("cross_entropy_finish", 2 * all,
                [&] { ops::cross_entropy_finish(logits, maximum, sums, targets, 0, 1e-3); });

  const at::Tensor weight = filled({s.vocabulary, s.hidden}, type, 2), dy = filled({s.tokens, s.hidden}, type, 3);
  at::Tensor dweight = ops::make(weight.sizes(), ops::to_scalar_type(wide));
  const double rows = static_cast<double>(dy.nbytes());
  report.memory("embedding_forward", 2 * rows, [&] { ops::embedding_forward(targets, weight, 0); });
  report.memory("embedding_backward", rows + static_cast<double>(dweight.nbytes()),
                [&] { ops::embedding_backward(dy, targets, dweight, 0, false); });
}

void measure_optimizer(const Report& report, const Sizes& s, DType type) {
  const DType wide = base::accumulator_of(type);
  const std::int64_t count = s.parameters;
  const at::Tensor gradient = filled({count}, wide, 1), master = filled({count}, wide, 2),
                   weight = filled({count}, type, 2);
  const at::Tensor exp_avg = filled({count}, wide, 3), exp_avg_sq = ops::make({count}, ops::to_scalar_type(wide));
  ops::fill_constant(1.0, exp_avg_sq.data_ptr(), wide, count);
  const ops::AdamWBuffers buffers{.master = master.data_ptr(),
                                  .master_type = wide,
                                  .weight = type == wide ? master.data_ptr() : weight.data_ptr(),
                                  .weight_type = type,
                                  .gradient = gradient.data_ptr(),
                                  .gradient_type = wide,
                                  .exp_avg = exp_avg.data_ptr(),
                                  .exp_avg_sq = exp_avg_sq.data_ptr(),
                                  .count = count};
  const double element =
      7 * static_cast<double>(base::size_of(wide)) + (type == wide ? 0 : static_cast<double>(base::size_of(type)));
  report.memory("adamw", element * static_cast<double>(count), [&] { ops::adamw({.lr = 1e-4, .step = 10}, buffers); });
  std::vector<double> sums(static_cast<std::size_t>(count / s.hidden));
  report.memory("row_square_sums", static_cast<double>(gradient.nbytes()), [&] {
    ops::row_square_sums(gradient.data_ptr(), wide, count / s.hidden, s.hidden, s.hidden, sums.data());
  });
  report.memory("fill_normal", static_cast<double>(weight.nbytes()), [&] {
    ops::fill_normal({.name = "w", .logical_cols = count, .rows = 1, .cols = count}, weight.data_ptr(), type);
  });
}

void measure_all(int threads) {
  at::set_num_threads(threads);
  for (const Sizes& sizes : kSizes) {
    for (const DType type : {DType::fp32, DType::bf16}) {
      const Report report(std::string(sizes.name) + " " + std::string(base::name_of(type)));
      measure_gemm(report, sizes, type);
      measure_attention(report, sizes, type);
      measure_token_ops(report, sizes, type);
      measure_vocabulary_ops(report, sizes, type);
      measure_optimizer(report, sizes, type);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    if (threads < 1 || argc > 2) throw InputError("usage: bench_kernels [THREADS], THREADS at least 1");
    measure_all(threads);
    std::fflush(nullptr);
    std::_Exit(0);  // for the reason given in apps/tessera.cpp
  } catch (const InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
