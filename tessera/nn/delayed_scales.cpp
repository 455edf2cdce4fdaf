#include "tessera/nn/delayed_scales.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/quant/cuda_table.h"

namespace tessera::nn {

int DelayedScales::add(std::string name, quant::Element element) {
  TESSERA_CHECK(numbers_.size() == 0, "a matrix of delayed scaling is added after one was used");
  names_.push_back(std::move(name));
  elements_.push_back(element);
  return static_cast<int>(elements_.size()) - 1;
}

void DelayedScales::prepare() {
  if (numbers_.size() > 0 || size() == 0) return;
  element_codes_ = base::Buffer(elements_.size() * sizeof(quant::Element), device_);
  base::copy_bytes(element_codes_.data(), elements_.data(), element_codes_.size());
  const auto count = static_cast<std::size_t>(values() + size());
  std::vector<float> start(count, 0);
  std::fill(start.end() - 2 * size(), start.end(), 1.0F);
  numbers_ = base::Buffer(count * sizeof(float), device_);
  base::copy_bytes(numbers_.data(), start.data(), numbers_.size());
}

ops::WholeScale DelayedScales::scale(int number) {
  prepare();
  const at::Device device = ops::to_device(device_);
  return {.multiplier = ops::view_of(multipliers() + number, {1}, quant::DType::fp32, device),
          .inverse = ops::view_of(inverses() + number, {1}, quant::DType::fp32, device),
          .amax = {}};
}

float* DelayedScales::amax(int number) {
  prepare();
  return history() + number;
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
                                      .counts = counts};
  if (device_.kind == base::DeviceKind::cpu) return quant::update_multipliers(scaling);
  quant::require_cuda("delayed scaling").update_multipliers(scaling, stream);
}

std::vector<float> DelayedScales::state() {
  prepare();
  std::vector<float> result(static_cast<std::size_t>(values()));
  base::copy_bytes(result.data(), numbers_.data(), result.size() * sizeof(float));
  return result;
}

void DelayedScales::set_state(std::span<const float> state) {
  if (static_cast<std::int64_t>(state.size()) != values())
    throw InputError("delayed scaling: got a state of {} numbers, expected {} for {} matrices and {} steps",
                     state.size(), values(), size(), options_.history);
  prepare();
  std::vector<float> all(state.begin(), state.end());
  for (std::int64_t i = 0; i < size(); ++i)
    all.push_back(1.0F / state[static_cast<std::size_t>(options_.history * size() + i)]);
  if (!all.empty()) base::copy_bytes(numbers_.data(), all.data(), numbers_.size());
  set_known();
}

}  // namespace tessera::nn
