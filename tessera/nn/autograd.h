// Stores pointers to modules in an autograd context. A module must outlive the autograd graphs that hold its pointer.
#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>

namespace tessera::nn {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Converts a tensor that may be undefined to an optional. Autograd functions accept undefined tensors only in this
// form.
inline std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

template <typename T>
void save_pointer(AutogradContext* ctx, const char* name, const T* pointer) {
  ctx->saved_data[name] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(pointer));
}

template <typename T>
T* saved_pointer(AutogradContext* ctx, const char* name) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): save_pointer stored this integer
  return reinterpret_cast<T*>(static_cast<std::intptr_t>(ctx->saved_data[name].toInt()));
}

}  // namespace tessera::nn
