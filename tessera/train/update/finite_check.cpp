#include "tessera/train/update/finite_check.h"

namespace tessera::train {

FiniteCheck::FiniteCheck(runtime::Runtime& runtime, nn::DelayedScales& scales) : runtime_(runtime), scales_(scales) {
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id)
    if (runtime.parameter(id).spec.encoding) ++encoded_;
  marks_ = base::Buffer(static_cast<std::size_t>(encoded_) * sizeof(float), runtime.parallel().device);
  marks_.fill_zero();
  float* next = marks_.as<float>().data();
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id)
    if (runtime.parameter(id).spec.encoding) runtime.parameter(id).write_not_finite(next++);
}

FiniteCheck::~FiniteCheck() {
  for (schedule::ParameterId id = 0; id < runtime_.parameters().size(); ++id)
    runtime_.parameter(id).write_not_finite(nullptr);
}

void FiniteCheck::count(std::span<const float> amaxes, std::int64_t* counter) const {
  const quant::Kernels& kernels = runtime_.parallel().kernels();
  kernels.count_not_finite(marks_.as<float>().data(), encoded_, counter);
  kernels.count_not_finite(amaxes.data(), static_cast<std::int64_t>(amaxes.size()), counter);
}

void FiniteCheck::count_after_step(std::int64_t* counter) const {
  count(scales_.found(), counter);
}

void FiniteCheck::count_after_evaluation(std::int64_t* counter) const {
  count(scales_.evaluated(), counter);
}

}  // namespace tessera::train
