// What the operators' front files share: checks with one wording, new tensors, the choice between the CPU's and the
// GPU's kernel. Internal to ops. Tensors are on the CPU, on a CUDA device or, in a dry run, on none (work.h), all
// operands of an operator on one.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>
#include <type_traits>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/work.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// A dense row-major tensor of the same values; `tensor` itself when it is one. Errors: undefined, another number of
// dimensions, neither on the CPU nor on a CUDA device; `what` names operator and operand in the message.
at::Tensor dense(const at::Tensor& tensor, std::int64_t dimensions, std::string_view what);
// The same, with the shape and the type it must have.
at::Tensor dense_like(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what);
// Throws unless `tensor`, written in place, is row-major and has this shape and type.
void require_writable(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what);
// Throws unless the defined ones among them are on one device.
void require_one_device(at::TensorList tensors, std::string_view what);

// Uninitialised memory.
at::Tensor make(at::IntArrayRef shape, at::ScalarType type, at::Device device = at::kCPU);
// bf16 and fp32 -> fp32; fp64 -> fp64. Errors: any other type.
at::ScalarType accumulator_type(at::ScalarType type);
// `tensor` (dense) in another floating type, each element rounded once; itself when it has that type already.
at::Tensor rounded_to(const at::Tensor& tensor, at::ScalarType type);

inline bool on_cuda(const at::Tensor& tensor) {
  return tensor.is_cuda();
}
// The current stream of the tensor's device as libtorch has it. Errors: another device is current.
base::CudaStream stream_of(const at::Tensor& tensor);

// Bytes of those tensors that are defined.
std::int64_t bytes_of(at::TensorList tensors);
// The memory of an operand of ids; none in a dry run.
inline const std::int64_t* ids_of(const at::Tensor& tensor) {
  return static_cast<const std::int64_t*>(tensor.const_data_ptr());
}

// Calls the kernel of the device of `where` with `arguments`; on CUDA it is put on the current stream. A dry run
// reports the work instead.
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
// sum += term, same shape and accumulator type, both dense.
void add_to(at::Tensor& sum, const at::Tensor& term);

}  // namespace tessera::ops
