// The benchmark `kernels`: time and rate of each operator and of the sum of a gradient, compared with the device's copy
// speed.
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
  std::int64_t experts = 8, choices = 2, expert_width = 256;  // choices: number of experts that each token chooses
  // Elements that the optimizer's kernels update; also the elements of the summed gradient.
  std::int64_t parameters = 2'000'000;
  int threads = 1;  // CPU threads for matrix products, attention and copies
  int repetitions = 15;
  std::string only;  // text that the names of the measured kernels contain; empty: all kernels
};
// Returns the sizes of Llama-3-8B.
KernelBench kernel_bench_on_cuda();

struct KernelRow {
  std::string name;
  double bytes = 0;    // bytes of memory traffic if each input is read once and each output is written once
  double seconds = 0;  // median over the repetitions; each repetition uses buffers that are not in caches
  double copy_rate = 0;
  double operations = 0;  // arithmetic operations of a matrix product or of attention; 0 for kernels that memory limits

  double rate() const { return bytes / seconds; }
  double share() const { return rate() / copy_rate; }
  double operation_rate() const { return operations / seconds; }
};

// Measures the kernels; the copy is the first row. Sets libtorch's number of threads. Throws InputError for sizes or
// threads below 1, an odd head_dim, a missing CUDA device, or if no kernel's name contains `only`.
std::vector<KernelRow> kernel_rows(const KernelBench& bench);

std::string kernel_text(const KernelBench& bench, const std::vector<KernelRow>& rows);
nlohmann::ordered_json kernel_json(const KernelBench& bench, const std::vector<KernelRow>& rows);

}  // namespace tessera::bench
