#include <ATen/cuda/CUDAContextLight.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/gemm/gemm_device.h"
#include "tessera/ops/gemm/gemm_table.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kMaxCandidates = 64;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Error("gemm: {}: {}", what, cublasLtGetStatusString(status));
}

template <typename T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  void operator()(T handle) const { kDestroy(handle); }
};
template <typename T, cublasStatus_t (*kDestroy)(T)>
using Owner = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, kDestroy>>;
using Description = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Matrix = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(quant::DType type) {
  switch (type) {
    case quant::DType::bf16:
      return CUDA_R_16BF;
    case quant::DType::fp32:
      return CUDA_R_32F;
    case quant::DType::fp64:
      return CUDA_R_64F;
    default:
      throw Error("gemm: element type {}: expected bf16, fp32 or fp64", name_of(type));
  }
}

cudaDataType_t type_of(quant::Element element) {
  switch (element) {
    case quant::Element::e4m3:
      return CUDA_R_8F_E4M3;
    case quant::Element::e5m2:
      return CUDA_R_8F_E5M2;
    case quant::Element::e2m1:
      break;
  }
  throw Error("gemm: codes of products: expected E4M3 or E5M2");
}

// Returns cuBLASLt's scale mode of an encoding.
cublasLtMatmulMatrixScale_t scale_mode(const quant::Encoding& encoding) {
  using quant::Scale, quant::ScaleTile;
  if (encoding.scale == Scale::fp32 && encoding.tile == ScaleTile{}) return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  if (encoding.scale == Scale::fp32 && encoding.tile == ScaleTile{1, 128})
    return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  if (encoding.scale == Scale::fp32 && encoding.tile == ScaleTile{128, 128})
    return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  throw Error("gemm: products do not support scales for tiles of {} x {}", encoding.tile.rows, encoding.tile.cols);
}

// Describes a row-major [rows, cols] matrix to cuBLASLt as its transpose, which is column-major.
Matrix matrix(std::int64_t rows, std::int64_t cols, cudaDataType_t type) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(cols), static_cast<std::uint64_t>(rows),
                                   cols),
        "matrix layout");
  return Matrix(layout);
}
Matrix matrix(std::int64_t rows, std::int64_t cols, quant::DType type) {
  return matrix(rows, cols, type_of(type));
}

template <typename T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value, const char* what) {
  check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value), what);
}

Description description(const Product& product) {
  const bool is_double = product.type == quant::DType::fp64;
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                 is_double ? CUDA_R_64F : CUDA_R_32F),
        "description");
  Description result(handle);
  // cuBLASLt multiplies the transposes, so right^T is the first operand.
  set(result, CUBLASLT_MATMUL_DESC_TRANSA, product.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose");
  set(result, CUBLASLT_MATMUL_DESC_TRANSB, product.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose");
  if (product.alpha != nullptr)
    set(result, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE, "place of the factors");
  return result;
}

// `right` is the first operand and is transposed, so the codes of a row are contiguous in both operands.
Description description(const ScaledProduct& product) {
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
  Description result(handle);
  set(result, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T, "transpose");
  set(result, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N, "transpose");
  set(result, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(product.right.encoding), "scales of right");
  set(result, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(product.left.encoding), "scales of left");
  set(result, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.right.scales, "scales of right");
  set(result, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.left.scales, "scales of left");
  set(result, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(product.fast), "accumulation");
  return result;
}

Preference preference(bool divides_sums) {
  cublasLtMatmulPreference_t handle = nullptr;
  check(cublasLtMatmulPreferenceCreate(&handle), "preference");
  Preference result(handle);
  const std::size_t scratch = kProductScratch;
  check(
      cublasLtMatmulPreferenceSetAttribute(handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch, sizeof scratch),
      "scratch");
  // The accepted schemes for adding partial sums. In other schemes, each partial sum is first rounded to the type of
  // the result.
  const std::uint32_t schemes = divides_sums ? CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                             : CUBLASLT_REDUCTION_SCHEME_NONE;
  check(cublasLtMatmulPreferenceSetAttribute(handle, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof schemes),
        "reduction schemes");
  return result;
}

// The key of an algorithm: sizes, types, transposes, kinds of scales and the place of the factors.
using Key = std::array<std::int64_t, 10>;

struct Algorithms {
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> found;
  int count = 0;
};
struct Task {
  Key key;
  const Description& work;
  const Matrix &first, &second, &result;
  bool divides_sums = true;  // whether the inner dimension may be divided into parts
};
// Returns the first `wanted` algorithms that the library proposes for first * second.
Algorithms algorithms(cublasLtHandle_t handle, const Task& task, int wanted) {
  TESSERA_CHECK(wanted <= kMaxCandidates, "gemm: candidate {}, expected less than {}", wanted - 1, kMaxCandidates);
  const Preference limits = preference(task.divides_sums);
  Algorithms all;
  check(cublasLtMatmulAlgoGetHeuristic(handle, task.work.get(), task.first.get(), task.second.get(), task.result.get(),
                                       task.result.get(), limits.get(), wanted, all.found.data(), &all.count),
        "no algorithm found");
  return all;
}

// Returns the algorithm of a candidate. The library takes up to a millisecond to choose, so choices are cached. If
// or_first, the first algorithm replaces a candidate that does not exist.
cublasLtMatmulAlgo_t algorithm(cublasLtHandle_t handle, const Task& task, int candidate, bool or_first) {
  static std::mutex mutex;
  static std::map<std::pair<Key, int>, cublasLtMatmulAlgo_t> chosen;
  const std::scoped_lock lock(mutex);
  const auto known = chosen.find({task.key, candidate});
  if (known != chosen.end()) return known->second;
  const auto [found, count] = algorithms(handle, task, candidate + 1);
  const int taken = or_first && candidate >= count ? 0 : candidate;
  if (taken >= count)
    throw Error("gemm [{}, {}] x [{}, {}]: candidate {}, expected less than {}", task.key[0], task.key[2], task.key[2],
                task.key[1], taken, count);
  return chosen[{task.key, candidate}] = found[static_cast<std::size_t>(taken)].algo;
}

// The factors of the product and of the result's earlier contents. The second factor is 0.
struct Factors {
  explicit Factors(const Product& product) {
    if (product.alpha != nullptr) {
      alpha = product.alpha;
      beta = product.alpha + 1;
    } else if (product.type == quant::DType::fp64) {
      alpha = &kDoubles[0];
      beta = &kDoubles[1];
    }
  }

  static constexpr float kFloats[] = {1, 0};
  static constexpr double kDoubles[] = {1, 0};
  const void* alpha = &kFloats[0];
  const void* beta = &kFloats[1];
};

Matrix left_of(const Product& product) {
  return product.left_transposed ? matrix(product.inner, product.rows, product.type)
                                 : matrix(product.rows, product.inner, product.type);
}
Matrix right_of(const Product& product) {
  return product.right_transposed ? matrix(product.cols, product.inner, product.type)
                                  : matrix(product.inner, product.cols, product.type);
}

Key key_of(const Product& product) {
  return {product.rows,
          product.cols,
          product.inner,
          product.left_transposed,
          product.right_transposed,
          static_cast<std::int64_t>(product.type),
          static_cast<std::int64_t>(product.result_type),
          product.alpha != nullptr};
}

// Describes `count` matrices.
void repeat(const Matrix& matrix, std::int64_t count, std::int64_t stride) {
  const auto matrices = static_cast<std::int32_t>(count);
  check(cublasLtMatrixLayoutSetAttribute(matrix.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices, sizeof matrices),
        "count of matrices");
  check(cublasLtMatrixLayoutSetAttribute(matrix.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                         sizeof stride),
        "stride of matrices");
}

}  // namespace

void multiply(const Product& product, void* scratch, base::CudaStream stream, int candidate) {
  if (product.rows == 0 || product.cols == 0) return;
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Description work = description(product);
  const Matrix left = left_of(product), right = right_of(product);
  const Matrix result = matrix(product.rows, product.cols, product.result_type);
  const bool from_table = candidate < 0;
  if (from_table)
    candidate = product.result_type == quant::DType::bf16
                    ? gemm_candidate(product.rows, product.cols, product.inner, product.left_transposed,
                                     product.right_transposed)
                    : 0;
  const cublasLtMatmulAlgo_t algo =
      algorithm(handle, {key_of(product), work, right, left, result}, candidate, from_table);
  const Factors factors(product);
  check(cublasLtMatmul(handle, work.get(), factors.alpha, product.right, right.get(), product.left, left.get(),
                       factors.beta, product.result, result.get(), product.result, result.get(), &algo, scratch,
                       kProductScratch, stream),
        "multiply");
}

void multiply_batch(const BatchedProduct& batch, void* scratch, base::CudaStream stream) {
  const Product& product = batch.product;
  if (product.rows == 0 || product.cols == 0 || batch.count == 0) return;
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Description work = description(product);
  const Matrix left = left_of(product), right = right_of(product);
  const Matrix result = matrix(product.rows, product.cols, product.result_type);
  Key key = key_of(product);
  key[8] = 1;  // not an algorithm of `multiply`
  const cublasLtMatmulAlgo_t algo =
      algorithm(handle, {key, work, right, left, result, /*divides_sums=*/false}, 0, /*or_first=*/false);
  repeat(left, batch.count, batch.left_stride);
  repeat(right, batch.count, batch.right_stride);
  repeat(result, batch.count, batch.result_stride);
  const double addend_factor = batch.addend != nullptr ? batch.addend_factor : 0,
               doubles[] = {batch.factor, addend_factor};
  const float floats[] = {static_cast<float>(batch.factor), static_cast<float>(addend_factor)};
  const bool is_double = product.type == quant::DType::fp64;
  const void* const alpha = is_double ? static_cast<const void*>(&doubles[0]) : &floats[0];
  const void* const beta = is_double ? static_cast<const void*>(&doubles[1]) : &floats[1];
  check(cublasLtMatmul(handle, work.get(), alpha, product.right, right.get(), product.left, left.get(), beta,
                       batch.addend != nullptr ? batch.addend : product.result, result.get(), product.result,
                       result.get(), &algo, scratch, kProductScratch, stream),
        "multiply matrices");
}

void multiply_scaled(const ScaledProduct& product, void* scratch, base::CudaStream stream, int candidate) {
  if (product.rows == 0 || product.cols == 0) return;
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Description work = description(product);
  const Matrix left = matrix(product.rows, product.inner, type_of(product.left.encoding.element));
  const Matrix right = matrix(product.cols, product.inner, type_of(product.right.encoding.element));
  const Matrix result = matrix(product.rows, product.cols, product.result_type);
  const Key key{product.rows,
                product.cols,
                product.inner,
                static_cast<std::int64_t>(product.left.encoding.element),
                static_cast<std::int64_t>(product.right.encoding.element),
                scale_mode(product.left.encoding),
                scale_mode(product.right.encoding),
                product.fast,
                static_cast<std::int64_t>(product.result_type),
                1};
  const cublasLtMatmulAlgo_t algo =
      algorithm(handle, {key, work, right, left, result}, std::max(candidate, 0), /*or_first=*/false);
  const float one = 1, zero = 0;
  check(cublasLtMatmul(handle, work.get(), &one, product.right.codes, right.get(), product.left.codes, left.get(),
                       &zero, product.result, result.get(), product.result, result.get(), &algo, scratch,
                       kProductScratch, stream),
        "multiply");
}

}  // namespace tessera::ops::cuda
