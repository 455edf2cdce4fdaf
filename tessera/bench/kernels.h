// The benchmark `kernels`: time and rate of each operator and of a gradient's sum, beside the device's copy speed.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/quant/dtype.h"

namespace tessera::bench {

struct KernelBench {
  bool cuda = false;
  quant::DType type = quant::DType::bf16;
  std::int64_t tokens = 256, hidden = 512, ffn = 1376, q_heads = 8, kv_heads = 2, head_dim = 64, vocabulary = 8192;
  std::int64_t parameters = 2'000'000;  // of the optimizer's kernels, and elements of a gradient that is summed
  int threads = 1;                      // of the CPU's matrix products, attention and copies
  int repetitions = 15;
  std::string only;  // kernels whose name holds this
};
// Llama-3-8B's sizes.
KernelBench kernel_bench_on_cuda();

struct KernelRow {
  std::string name;
  double bytes = 0;    // each input read once, each output written once
  double seconds = 0;  // median over the repetitions; in each the call goes over buffers that caches do not hold
  double copy_rate = 0;
  double operations = 0;  // of matrix products and attention, whose share of the copy speed says little

  double rate() const { return bytes / seconds; }
  double share() const { return rate() / copy_rate; }
  double operation_rate() const { return operations / seconds; }
};

// The copy first. Sets the number of threads that libtorch takes. Errors (InputError): sizes or threads below 1, an odd
// head_dim, no CUDA device, no kernel whose name holds `only`.
std::vector<KernelRow> kernel_rows(const KernelBench& bench);

std::string kernel_text(const KernelBench& bench, const std::vector<KernelRow>& rows);
nlohmann::ordered_json kernel_json(const KernelBench& bench, const std::vector<KernelRow>& rows);

}  // namespace tessera::bench
