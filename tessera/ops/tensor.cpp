#include "tessera/ops/tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include "tessera/base/error.h"
#include "tessera/ops/cast.h"
#include "tessera/ops/convert.h"

namespace tessera::ops {
namespace {

std::string shape_text(at::IntArrayRef shape) {
  return c10::str(shape);
}

void require(const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type, std::string_view what) {
  TESSERA_CHECK(tensor.defined(), "{}: undefined tensor", what);
  TESSERA_CHECK(tensor.device().is_cpu(), "{}: on {}, this build has CPU kernels only", what, tensor.device().str());
  TESSERA_CHECK(tensor.sizes() == shape, "{}: shape {}, expected {}", what, shape_text(tensor.sizes()),
                shape_text(shape));
  TESSERA_CHECK(tensor.scalar_type() == type, "{}: element type {}, expected {}", what,
                c10::toString(tensor.scalar_type()), c10::toString(type));
}

}  // namespace

at::ScalarType to_scalar_type(base::DType type) {
  switch (type) {
    case base::DType::u8:
      return at::kByte;
    case base::DType::i32:
      return at::kInt;
    case base::DType::i64:
      return at::kLong;
    case base::DType::bf16:
      return at::kBFloat16;
    case base::DType::fp32:
      return at::kFloat;
    case base::DType::fp64:
      return at::kDouble;
  }
  throw Error("element type {}: ATen has none like it", static_cast<int>(type));
}

base::DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return base::DType::u8;
    case at::kInt:
      return base::DType::i32;
    case at::kLong:
      return base::DType::i64;
    case at::kBFloat16:
      return base::DType::bf16;
    case at::kFloat:
      return base::DType::fp32;
    case at::kDouble:
      return base::DType::fp64;
    default:
      throw Error("element type {}: expected u8, i32, i64, bf16, fp32 or fp64", c10::toString(type));
  }
}

at::Tensor view_of(void* data, at::IntArrayRef shape, base::DType type) {
  return at::from_blob(data, shape, at::TensorOptions().dtype(to_scalar_type(type)));
}

at::Tensor dense(const at::Tensor& tensor, std::int64_t dimensions, std::string_view what) {
  TESSERA_CHECK(tensor.defined(), "{}: undefined tensor", what);
  TESSERA_CHECK(tensor.dim() == dimensions, "{}: shape {}, expected {} dimensions", what, shape_text(tensor.sizes()),
                dimensions);
  TESSERA_CHECK(tensor.device().is_cpu(), "{}: on {}, this build has CPU kernels only", what, tensor.device().str());
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

at::Tensor make(at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions().dtype(type));
}

at::ScalarType accumulator_type(at::ScalarType type) {
  const base::DType element = to_dtype(type);
  TESSERA_CHECK(base::is_floating(element), "element type {}: expected bf16, fp32 or fp64", base::name_of(element));
  return to_scalar_type(base::accumulator_of(element));
}

at::Tensor rounded_to(const at::Tensor& tensor, at::ScalarType type) {
  if (tensor.scalar_type() == type) return tensor;
  at::Tensor result = make(tensor.sizes(), type);
  cast(tensor.const_data_ptr(), to_dtype(tensor.scalar_type()), result.mutable_data_ptr(), to_dtype(type),
       tensor.numel());
  return result;
}

}  // namespace tessera::ops
