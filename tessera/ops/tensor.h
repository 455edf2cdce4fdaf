// What the operators' front files share: checks with one wording, and new tensors. Internal to ops.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

#include "tessera/base/dtype.h"

namespace tessera::ops {

// A dense row-major tensor of the same values; `tensor` itself when it is one. Errors: undefined, another number of
// dimensions, not on the CPU; `what` names operator and operand in the message.
at::Tensor dense(const at::Tensor& tensor, std::int64_t dimensions, std::string_view what);
// The same, with the shape and the type it must have.
at::Tensor dense_like(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what);
// Throws unless `tensor`, written in place, is row-major and has this shape and type.
void require_writable(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what);

// Uninitialised CPU memory.
at::Tensor make(at::IntArrayRef shape, at::ScalarType type);
// bf16 and fp32 -> fp32; fp64 -> fp64. Errors: any other type.
at::ScalarType accumulator_type(at::ScalarType type);
// `tensor` (dense) in another floating type, each element rounded once; itself when it has that type already.
at::Tensor rounded_to(const at::Tensor& tensor, at::ScalarType type);

}  // namespace tessera::ops
