#include "tessera/nn/delayed_scales.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/quant/cuda_table.h"

namespace tessera::nn {
namespace {

// Returns a buffer on the device with these values.
template <typename T>
base::Buffer buffer_of(const std::vector<T>& values, base::Device device) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  base::Buffer buffer(bytes.size(), device);
  base::copy_bytes(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}

// Returns amaxes of 0 and multipliers of 1.
std::vector<float> state_at_start(std::int64_t values, std::int64_t matrices) {
  std::vector<float> start(static_cast<std::size_t>(values), 0);
  std::fill(start.end() - matrices, start.end(), 1.0F);
  return start;
}

}  // namespace

int DelayedScales::add(std::string name, quant::Element element) {
  TESSERA_CHECK(numbers_.size() == 0, "delayed scaling: cannot add a matrix after the first use of a scale");
  names_.push_back(std::move(name));
  elements_.push_back(element);
  return static_cast<int>(elements_.size()) - 1;
}

void DelayedScales::prepare() {
  if (numbers_.size() > 0 || size() == 0) return;
  element_codes_ = buffer_of(elements_, memory_);
  numbers_ = base::Buffer(static_cast<std::size_t>(values()) * sizeof(float), memory_);
  inverses_ = base::Buffer(elements_.size() * kInverseStride * sizeof(float), memory_);
  evaluated_ = buffer_of(std::vector<float>(elements_.size()), memory_);
  write(state_at_start(values(), size()));
}

void DelayedScales::write(std::span<const float> values) {
  const auto multipliers = values.last(elements_.size());
  std::vector<float> inverses(elements_.size() * kInverseStride, 1.0F);
  for (std::size_t i = 0; i < elements_.size(); ++i) inverses[i * kInverseStride] = 1.0F / multipliers[i];
  base::copy_bytes(numbers_.data(), values.data(), numbers_.size());
  base::copy_bytes(inverses_.data(), inverses.data(), inverses_.size());
}

ops::WholeScale DelayedScales::scale(int number) {
  prepare();
  const at::Device device = ops::to_device(device_);
  return {.multiplier = ops::view_of(multipliers() + number, {1}, quant::DType::fp32, device),
          .inverse = ops::view_of(inverses() + number * kInverseStride, {1}, quant::DType::fp32, device),
          .amax = {}};
}

float* DelayedScales::amax(int number) {
  prepare();
  return history() + number;
}

float* DelayedScales::evaluated_amax(int number) {
  prepare();
  return evaluated_.as<float>().data() + number;
}

std::span<const float> DelayedScales::evaluated() {
  prepare();
  return {evaluated_.as<float>().data(), static_cast<std::size_t>(size())};
}

void DelayedScales::clear_evaluated(const quant::Kernels& kernels) {
  prepare();
  kernels.fill(evaluated_.data(), quant::DType::fp32, 0, size());
}

std::span<float> DelayedScales::found() {
  prepare();
  return {history(), static_cast<std::size_t>(size())};
}

void DelayedScales::update(const std::int32_t* counts, base::CudaStream stream) {
  prepare();
  const quant::DelayedScaling scaling{.history = history(),
                                      .elements = element_codes_.as<quant::Element>().data(),
                                      .multipliers = multipliers(),
                                      .inverses = inverses(),
                                      .length = options_.history,
                                      .tensors = size(),
                                      .choice = options_.choice,
                                      .margin = options_.margin,
                                      .counts = counts,
                                      .inverse_stride = kInverseStride};
  if (memory_.kind == base::DeviceKind::cpu) return quant::update_multipliers(scaling);
  quant::require_cuda("delayed scaling").update_multipliers(scaling, stream);
}

std::vector<float> DelayedScales::state(base::Lane& compute) {
  prepare();
  compute.synchronize();
  std::vector<float> result(static_cast<std::size_t>(values()));
  base::copy_bytes(result.data(), numbers_.data(), numbers_.size());
  return result;
}

void DelayedScales::set_state(std::span<const float> state, base::Lane& compute) {
  if (static_cast<std::int64_t>(state.size()) != values())
    throw InputError("delayed scaling: got a state of {} numbers, expected {} for {} matrices and {} steps",
                     state.size(), values(), size(), options_.history);
  const auto multipliers = state.last(elements_.size()), amaxes = state.first(state.size() - elements_.size());
  for (const float amax : amaxes)
    if (!(amax >= 0 && std::isfinite(amax)))
      throw InputError("delayed scaling: got an amax of {}, expected a finite one", amax);
  for (const float multiplier : multipliers)
    if (!(multiplier > 0 && std::isfinite(multiplier)))
      throw InputError("delayed scaling: got a multiplier of {}, expected a positive finite one", multiplier);
  prepare();
  compute.synchronize();
  if (size() > 0) write(state);
  set_known();
}

void DelayedScales::reset(base::Lane& compute) {
  prepare();
  compute.synchronize();
  if (size() > 0) write(state_at_start(values(), size()));
  known_ = false;
}

}  // namespace tessera::nn
