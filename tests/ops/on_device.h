// Tensors and objects on a GPU for tests.
#pragma once
#include <cstdint>
#include <cstring>

#include "tessera/ops/tensor.h"

namespace tessera::ops::test {

inline at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(at::kCUDA);
}

template <typename T>
at::Tensor object_on_device(const T& value) {
  T copy = value;
  return on_device(view_of(&copy, {static_cast<std::int64_t>(sizeof(T))}, quant::DType::u8));
}
template <typename T>
T object_of(const at::Tensor& bytes) {
  T value;
  std::memcpy(&value, bytes.cpu().const_data_ptr(), sizeof(T));
  return value;
}

}  // namespace tessera::ops::test
