// Code that the operators share: checks with uniform messages, allocation of tensors, and the choice between the CPU
// kernel and the GPU kernel. Internal to ops. All operands of an operator are on one device: the CPU, a CUDA device, or
// ATen's meta device in a dry run (work.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>
#include <type_traits>

#include "tessera/base/cuda_only.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/ops/work.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

using base::cuda_only;

// Returns `tensor` itself if it is dense and row-major, otherwise a dense row-major copy. Throws Error if the tensor is
// undefined, does not have `dimensions` dimensions or is on an unsupported device. `what` names the operator and the
// operand in messages.
at::Tensor dense(const at::Tensor& tensor, std::int64_t dimensions, std::string_view what);
// Like dense, but also checks the shape and the type.
at::Tensor dense_like(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what);
// Throws Error unless `tensor` is row-major and has this shape and type. Used for tensors that an operator writes in
// place.
void require_writable(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what);
// Throws Error unless all defined tensors are on one device.
void require_one_device(at::TensorList tensors, std::string_view what);

// Returns a tensor with uninitialised memory.
at::Tensor make(at::IntArrayRef shape, at::ScalarType type, at::Device device = at::kCPU);
// Returns fp32 for bf16 and fp32, and fp64 for fp64. Throws Error for any other type.
at::ScalarType accumulator_type(at::ScalarType type);
// Converts a dense tensor to another floating type and rounds each element once. Returns `tensor` itself if it already
// has the type.
at::Tensor rounded_to(const at::Tensor& tensor, at::ScalarType type);

inline bool on_cuda(const at::Tensor& tensor) {
  return tensor.is_cuda();
}
// Returns libtorch's current stream for the tensor's device, never null. Throws Error if that device is not the current
// device.
base::CudaStream stream_of(const at::Tensor& tensor);
namespace cuda {
base::CudaStream stream_of(const at::Tensor& tensor);
}

// Returns the total bytes of the defined tensors.
std::int64_t bytes_of(at::TensorList tensors);
// Returns the address of the data of a tensor of ids; null in a dry run.
inline const std::int64_t* ids_of(const at::Tensor& tensor) {
  return static_cast<const std::int64_t*>(tensor.const_data_ptr());
}

// Calls the kernel for the device of the tensor `where` with `arguments`. On CUDA the kernel is enqueued on the current
// stream. A dry run does not call a kernel and only reports `work`.
template <typename Arguments>
void run_kernel(const Work& work, const at::Tensor& where, void (*cpu)(const Arguments&),
                void (*cuda)(const Arguments&, base::CudaStream), const std::type_identity_t<Arguments>& arguments) {
  if (is_dry(where)) return report(work);
  if (on_cuda(where))
    cuda(arguments, stream_of(where));
  else
    cpu(arguments);
}
template <typename Shape, typename Arguments>
void run_kernel(const Work& work, const at::Tensor& where, void (*cpu)(const Shape&, const Arguments&),
                void (*cuda)(const Shape&, const Arguments&, base::CudaStream),
                const std::type_identity_t<Shape>& shape, const std::type_identity_t<Arguments>& arguments) {
  if (is_dry(where)) return report(work);
  if (on_cuda(where))
    cuda(shape, arguments, stream_of(where));
  else
    cpu(shape, arguments);
}
// Computes sum += term. `sum` and `term` are dense and have the same shape and the same accumulator type.
void add_to(at::Tensor& sum, const at::Tensor& term);

}  // namespace tessera::ops
