// Options of products, and delayed scales for fp8 products with one scale per matrix. A delayed scale is computed from
// the amaxes of earlier steps and is constant within a step. A product therefore needs neither a collective nor an
// extra pass over the matrix before it can quantize the matrix.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/lanes/lane.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/nn/parallel/token_chunks.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/formats/delayed_scaling.h"

namespace tessera::nn {

enum class Fp8Scaling : std::uint8_t { delayed, current };

// How the gradients of nvfp4 products are rounded (quant/formats/stochastic_rounding.h). Inputs and weights are rounded
// to nearest even.
enum class GradientRounding : std::uint8_t { stochastic, nearest };

// Options of the matrix products of layers. tp_chunks and tp_overlap apply to all products, the other options only to
// products in number formats.
struct ProductOptions {
  quant::Fp8Recipe recipe = quant::Fp8Recipe::hybrid;
  Fp8Scaling scaling = Fp8Scaling::delayed;
  std::int64_t history = 16;  // number of earlier steps, at least 1
  quant::AmaxChoice choice = quant::AmaxChoice::greatest;
  int margin = 0;
  // nvfp4: whether the operands of wgrad are transformed (quant/formats/hadamard.h), and how gradients are rounded.
  bool hadamard = true;
  GradientRounding rounding = GradientRounding::stochastic;
  // Number format in which activations and gradients are gathered over tp for a product: bf16, or fp8 for fp8 products.
  quant::Format tp_wire = quant::Format::bf16;
  // Under sequence parallelism: the largest number of chunks into which the tokens of a product are divided
  // (token_chunks.h).
  std::int64_t tp_chunks = kAutomaticChunks;
  // Under sequence parallelism: whether tokens are exchanged in pieces while products run (token_pieces.h). The results
  // have the same bits with and without overlap.
  bool tp_overlap = false;
};

// Delayed scales of the inputs and the output gradients of one rank's layers. Used by one thread. The values are in
// device memory; only compute's lane reads and writes them.
class DelayedScales {
 public:
  // `device` is the device of the matrices. In a dry run the values are in host memory.
  DelayedScales(const ProductOptions& options, base::Device device)
      : options_(options), device_(device), memory_(device.kind == base::DeviceKind::none ? base::Device{} : device) {}

  // Adds a matrix and returns its number. Throws Error after the first use of any scale.
  int add(std::string name, quant::Element element);
  const std::vector<std::string>& names() const { return names_; }
  std::int64_t size() const { return static_cast<std::int64_t>(elements_.size()); }
  std::span<const quant::Element> elements() const { return elements_; }
  const ProductOptions& options() const { return options_; }

  // Returns whether the amaxes of an earlier step are known. While the amaxes are not known, each matrix is quantized
  // with its own amax, because a multiplier of 1 would round gradients to zero.
  bool are_known() const { return known_; }
  // Called when the host knows that the update of a step was applied.
  void set_known() { known_ = size() > 0; }

  // Returns the scale of a matrix, as a view of this object's memory.
  ops::WholeScale scale(int number);
  // Returns the address to which a product writes the amax of the matrix in this step.
  float* amax(int number);
  // Returns the address to which a product writes the amax of the matrix in an evaluation. No scale is computed from
  // this amax, but an infinite amax reveals values that saturation would hide. Each evaluation starts with
  // clear_evaluated(), which is enqueued on compute's lane.
  float* evaluated_amax(int number);
  std::span<const float> evaluated();
  void clear_evaluated(const quant::Kernels& kernels);

  // The function found() returns the step's amaxes. After a step, the caller reduces these amaxes over all ranks by
  // maximum. Then update() adds the amaxes to the history and computes the multipliers of the next step. `counts` is in
  // device memory. If its value is 0, update() ignores the step; the value must be 0 for a step with an infinite amax.
  // If `counts` is null, the step is used. On a GPU, update() is enqueued on `stream`.
  std::span<float> found();
  void update(const std::int32_t* counts, base::CudaStream stream);

  // Between steps, state() copies the state to host memory, and set_state() copies a state from host memory. Both first
  // wait for compute's lane. The state consists of the amaxes of the earlier steps, [history, size()], and then the
  // multipliers, [size()].
  std::vector<float> state(base::Lane& compute);
  // Throws InputError if the number of values differs, or if one of the values is not a possible amax or multiplier.
  void set_state(std::span<const float> values, base::Lane& compute);
  // Resets the state to its initial value, in which no amax is known. Waits for compute's lane.
  void reset(base::Lane& compute);

 private:
  void prepare();
  void write(std::span<const float> values);
  std::int64_t values() const { return (options_.history + 1) * size(); }
  float* history() { return numbers_.as<float>().data(); }
  float* multipliers() { return history() + options_.history * size(); }
  // The distance between two scales in floats. GPU products require scales at multiples of 16 bytes.
  static constexpr std::int64_t kInverseStride = 4;
  float* inverses() { return inverses_.as<float>().data(); }

  ProductOptions options_;
  base::Device device_, memory_;
  std::vector<std::string> names_;
  std::vector<quant::Element> elements_;
  base::Buffer element_codes_;
  base::Buffer numbers_;  // history, multipliers
  base::Buffer inverses_;
  base::Buffer evaluated_;  // amaxes of an evaluation
  bool known_ = false;
};

}  // namespace tessera::nn
