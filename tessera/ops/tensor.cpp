#include "tessera/ops/tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include <array>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/quant/cuda_table.h"
#include "tessera/quant/elementwise.h"

namespace tessera::ops {
namespace {

std::string shape_text(at::IntArrayRef shape) {
  return c10::str(shape);
}

void require_device(const at::Tensor& tensor, std::string_view what) {
  const at::Device device = tensor.device();
  TESSERA_CHECK(device.is_cpu() || device.is_cuda() || device.is_meta(), "{}: on {}, expected the CPU or a CUDA device",
                what, device.str());
}

void require(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what) {
  TESSERA_CHECK(tensor.defined(), "{}: undefined tensor", what);
  require_device(tensor, what);
  TESSERA_CHECK(tensor.sizes() == shape, "{}: shape {}, expected {}", what, shape_text(tensor.sizes()),
                shape_text(shape));
  TESSERA_CHECK(tensor.scalar_type() == type, "{}: element type {}, expected {}", what,
                c10::toString(tensor.scalar_type()), c10::toString(type));
}

}  // namespace

at::ScalarType to_scalar_type(quant::DType type) {
  switch (type) {
    case quant::DType::u8:
      return at::kByte;
    case quant::DType::i32:
      return at::kInt;
    case quant::DType::i64:
      return at::kLong;
    case quant::DType::bf16:
      return at::kBFloat16;
    case quant::DType::fp32:
      return at::kFloat;
    case quant::DType::fp64:
      return at::kDouble;
  }
  throw Error("element type {}: expected a type that ATen supports", static_cast<int>(type));
}

quant::DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return quant::DType::u8;
    case at::kInt:
      return quant::DType::i32;
    case at::kLong:
      return quant::DType::i64;
    case at::kBFloat16:
      return quant::DType::bf16;
    case at::kFloat:
      return quant::DType::fp32;
    case at::kDouble:
      return quant::DType::fp64;
    default:
      throw Error("element type {}: expected u8, i32, i64, bf16, fp32 or fp64", c10::toString(type));
  }
}

at::Device to_device(base::Device device) {
  if (device.kind == base::DeviceKind::cpu) return at::kCPU;
  if (device.kind == base::DeviceKind::none) return at::kMeta;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

at::Tensor view_of(void* data, at::IntArrayRef shape, quant::DType type, at::Device device) {
  if (device.is_meta()) return make(shape, to_scalar_type(type), device);
  return at::from_blob(data, shape, at::TensorOptions().dtype(to_scalar_type(type)).device(device));
}

at::Tensor dense(const at::Tensor& tensor, std::int64_t dimensions, std::string_view what) {
  TESSERA_CHECK(tensor.defined(), "{}: undefined tensor", what);
  TESSERA_CHECK(tensor.dim() == dimensions, "{}: shape {}, expected {} dimensions", what, shape_text(tensor.sizes()),
                dimensions);
  require_device(tensor, what);
  return tensor.contiguous();
}

at::Tensor dense_like(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what) {
  require(tensor, shape, type, what);
  return tensor.contiguous();
}

void require_writable(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what) {
  require(tensor, shape, type, what);
  TESSERA_CHECK(tensor.is_contiguous(), "{}: written in place, expected row-major memory", what);
}

void require_one_device(at::TensorList tensors, std::string_view what) {
  const at::Tensor* first = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (first == nullptr) first = &tensor;
    TESSERA_CHECK(tensor.device() == first->device(), "{}: operands on {} and {}, expected one device", what,
                  first->device().str(), tensor.device().str());
  }
}

std::int64_t bytes_of(at::TensorList tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

at::Tensor make(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return at::empty(shape, at::TensorOptions().dtype(type).device(device));
}

base::CudaStream stream_of(const at::Tensor& tensor) {
  return cuda_only<cuda::stream_of>(tensor);
}

at::ScalarType accumulator_type(at::ScalarType type) {
  const quant::DType element = to_dtype(type);
  TESSERA_CHECK(quant::is_floating(element), "element type {}: expected bf16, fp32 or fp64", name_of(element));
  return to_scalar_type(quant::accumulator_of(element));
}

at::Tensor rounded_to(const at::Tensor& tensor, at::ScalarType type) {
  if (tensor.scalar_type() == type) return tensor;
  at::Tensor result = make(tensor.sizes(), type, tensor.device());
  if (is_dry(tensor)) {
    report(memory_work("round", bytes_of({tensor, result})));
    return result;
  }
  const quant::DType from = to_dtype(tensor.scalar_type()), to = to_dtype(type);
  if (on_cuda(tensor))
    quant::require_cuda("cast").cast(tensor.const_data_ptr(), from, result.mutable_data_ptr(), to, tensor.numel(),
                                     stream_of(tensor));
  else
    quant::cast(tensor.const_data_ptr(), from, result.mutable_data_ptr(), to, tensor.numel());
  return result;
}

void add_to(at::Tensor& sum, const at::Tensor& term) {
  if (is_dry(sum)) return report(memory_work("add", bytes_of({sum, sum, term})));
  const quant::DType type = to_dtype(sum.scalar_type());
  if (on_cuda(sum))
    quant::require_cuda("add").add(sum.mutable_data_ptr(), type, term.const_data_ptr(), sum.numel(), stream_of(sum));
  else
    quant::ordered_sum(sum.mutable_data_ptr(), type, true, std::array{term.const_data_ptr()}, type, sum.numel());
}

}  // namespace tessera::ops
