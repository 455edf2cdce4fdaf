// Module pointers in an autograd context. Modules outlive the graphs made with them.
#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>

namespace tessera::nn {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A tensor argument that may be undefined: autograd takes it as an optional.
inline std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

template <typename T>
void save_pointer(AutogradContext* ctx, const char* name, const T* pointer) {
  ctx->saved_data[name] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(pointer));
}

template <typename T>
T* saved_pointer(AutogradContext* ctx, const char* name) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): save_pointer's own
  return reinterpret_cast<T*>(static_cast<std::intptr_t>(ctx->saved_data[name].toInt()));
}

}  // namespace tessera::nn
