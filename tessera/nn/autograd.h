// Autograd functions keep pointers to modules, the state of the pass, and the number of parts of a summed matrix, in
// their contexts. A module must outlive the autograd graphs that hold its pointer.
#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>

#include "tessera/nn/pass_state.h"

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

// Keeps a copy of the pass for backward.
struct SavedPass : torch::CustomClassHolder {
  explicit SavedPass(const PassState& of_forward) : pass(of_forward) {}
  const PassState pass;
};
inline void save_pass(AutogradContext* ctx, const PassState& pass) {
  ctx->saved_data["pass"] = c10::IValue::make_capsule(c10::make_intrusive<SavedPass>(pass));
}
// Returns the state of the microbatch's backward pass.
inline PassState saved_pass(AutogradContext* ctx) {
  const auto saved = c10::static_intrusive_pointer_cast<SavedPass>(ctx->saved_data["pass"].toCapsule());
  return saved->pass.in(schedule::Pass::backward);
}

// For an autograd function whose first argument is the list of a matrix's parts (SummedParts): saves the number of
// parts.
inline void save_parts(AutogradContext* ctx, at::TensorList parts) {
  ctx->saved_data["parts"] = static_cast<std::int64_t>(parts.size());
}
// Returns the result of such a function's backward: `gradient` for each part, followed by `others`.
inline variable_list gradients_with_parts(AutogradContext* ctx, const at::Tensor& gradient,
                                          const variable_list& others) {
  variable_list result(static_cast<std::size_t>(ctx->saved_data["parts"].toInt()), gradient);
  result.insert(result.end(), others.begin(), others.end());
  return result;
}

}  // namespace tessera::nn
