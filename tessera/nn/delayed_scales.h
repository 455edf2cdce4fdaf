// Scales of fp8 products that have one for a whole matrix, from the amaxes of earlier steps: constant within a step, so
// that no message and no pass over memory stands before a product. Also how products in number formats are made.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/base/lane.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/formats/delayed_scaling.h"

namespace tessera::nn {

enum class Fp8Scaling : std::uint8_t { delayed, current };

struct ProductOptions {
  quant::Fp8Recipe recipe = quant::Fp8Recipe::hybrid;
  Fp8Scaling scaling = Fp8Scaling::delayed;
  std::int64_t history = 16;  // steps; at least 1
  quant::AmaxChoice choice = quant::AmaxChoice::greatest;
  int margin = 0;
  // In this format activations and gradients travel whose tokens are brought together over tp for products: bf16, or
  // fp8 for fp8 products.
  quant::Format tp_wire = quant::Format::bf16;
};

// Of one rank's inputs and output gradients. One thread; memory of the device, which only compute's lane reads and
// writes.
class DelayedScales {
 public:
  // device: where the matrices lie. In a dry run the few numbers lie on the host.
  DelayedScales(const ProductOptions& options, base::Device device)
      : options_(options), device_(device), memory_(device.kind == base::DeviceKind::none ? base::Device{} : device) {}

  // One more matrix; returns its number. Before any is used.
  int add(std::string name, quant::Element element);
  const std::vector<std::string>& names() const { return names_; }
  std::int64_t size() const { return static_cast<std::int64_t>(elements_.size()); }
  std::span<const quant::Element> elements() const { return elements_; }
  const ProductOptions& options() const { return options_; }

  // Whether an earlier step's amaxes are known. While they are not, matrices are quantized by their own amaxes, which
  // fill the history: a multiplier of 1 would round gradients to zero.
  bool are_known() const { return known_; }
  // The host has seen that a step has counted.
  void set_known() { known_ = size() > 0; }

  // Views of this object's memory.
  ops::WholeScale scale(int number);
  // Takes a matrix's greatest magnitude in this step.
  float* amax(int number);
  // The same in an evaluation: no scale follows from it, but an infinite one shows what saturation hides. Evaluations
  // begin with clear_evaluated(), enqueued on compute's lane.
  float* evaluated_amax(int number);
  std::span<const float> evaluated();
  void clear_evaluated(const quant::Kernels& kernels);

  // After a step: the amaxes that it found, to be taken together over all ranks; then the multipliers of the next one.
  // counts: of the device; 0: the step does not count, as one with an infinite amax must not. Null: the step counts.
  // Enqueued on `stream` if the device is a GPU.
  std::span<float> found();
  void update(const std::int32_t* counts, base::CudaStream stream);

  // The state between steps: amaxes of the steps before, [history, size()], then multipliers [size()]. From and to host
  // memory. Both wait for compute's lane first.
  std::vector<float> state(base::Lane& compute);
  // Errors (InputError): another number of values; amaxes or multipliers that no step leaves.
  void set_state(std::span<const float> values, base::Lane& compute);
  // As before the first step: no amax is known. Waits for compute's lane.
  void forget(base::Lane& compute);

 private:
  void prepare();
  void write(std::span<const float> values);
  std::int64_t values() const { return (options_.history + 1) * size(); }
  float* history() { return numbers_.as<float>().data(); }
  float* multipliers() { return history() + options_.history * size(); }
  // A multiple of 16 bytes apart, as GPUs' products read them.
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
