#include <ATen/cuda/CUDAContextLight.h>
#include <cublasLt.h>

#include <array>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/ops/gemm_device.h"
#include "tessera/ops/gemm_table.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kMostCandidates = 64;

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

// A row-major [rows, cols] matrix as cuBLASLt sees it: its transpose, column by column.
Matrix matrix(std::int64_t rows, std::int64_t cols, quant::DType type) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(type), static_cast<std::uint64_t>(cols),
                                   static_cast<std::uint64_t>(rows), cols),
        "matrix layout");
  return Matrix(layout);
}

Description description(const Product& product) {
  const bool is_double = product.type == quant::DType::fp64;
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                 is_double ? CUDA_R_64F : CUDA_R_32F),
        "description");
  Description result(handle);
  // The transposes are multiplied in the other order: right^T comes first.
  const cublasOperation_t first = product.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = product.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), "transpose");
  check(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second), "transpose");
  return result;
}

Preference preference() {
  cublasLtMatmulPreference_t handle = nullptr;
  check(cublasLtMatmulPreferenceCreate(&handle), "preference");
  Preference result(handle);
  const std::size_t scratch = kProductScratch;
  check(
      cublasLtMatmulPreferenceSetAttribute(handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch, sizeof scratch),
      "scratch");
  // How parts of a sum are added, where there are any: in other ways each is first rounded to the result's type.
  const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  check(cublasLtMatmulPreferenceSetAttribute(handle, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof schemes),
        "reduction schemes");
  return result;
}

}  // namespace

void multiply(const Product& product, void* scratch, base::CudaStream stream, int candidate) {
  if (product.rows == 0 || product.cols == 0) return;
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Description work = description(product);
  const Matrix left = product.left_transposed ? matrix(product.inner, product.rows, product.type)
                                              : matrix(product.rows, product.inner, product.type);
  const Matrix right = product.right_transposed ? matrix(product.cols, product.inner, product.type)
                                                : matrix(product.inner, product.cols, product.type);
  const Matrix result = matrix(product.rows, product.cols, product.result_type);
  const bool from_table = candidate < 0;
  if (from_table)
    candidate = product.result_type == quant::DType::bf16
                    ? gemm_candidate(product.rows, product.cols, product.inner, product.left_transposed,
                                     product.right_transposed)
                    : 0;
  TESSERA_CHECK(candidate < kMostCandidates, "gemm: candidate {} of at most {}", candidate, kMostCandidates);
  const Preference limits = preference();
  std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> found;
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, work.get(), right.get(), left.get(), result.get(), result.get(),
                                       limits.get(), candidate + 1, found.data(), &count),
        "no algorithm");
  if (from_table && candidate >= count && count > 0) candidate = 0;  // a library that offers fewer
  if (candidate >= count)
    throw Error("gemm [{}, {}] x [{}, {}]: candidate {} of {}", product.rows, product.inner, product.inner,
                product.cols, candidate, count);
  const float one = 1, zero = 0;
  const double one_double = 1, zero_double = 0;
  const bool is_double = product.type == quant::DType::fp64;
  check(
      cublasLtMatmul(handle, work.get(), is_double ? static_cast<const void*>(&one_double) : &one, product.right,
                     right.get(), product.left, left.get(), is_double ? static_cast<const void*>(&zero_double) : &zero,
                     product.result, result.get(), product.result, result.get(),
                     &found[static_cast<std::size_t>(candidate)].algo, scratch, kProductScratch, stream),
      "multiply");
}

}  // namespace tessera::ops::cuda
