// Replaces the CUDA kernels in a build without CUDA. Each function throws Error.
#include "tessera/base/error.h"
#include "tessera/ops/cross_entropy/cross_entropy_kernels.h"
#include "tessera/ops/embedding/embedding_kernels.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/ops/norm/rms_norm_kernels.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/ops/rope/rope_kernels.h"
#include "tessera/ops/swiglu/swiglu_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw Error("{}: this build has no CUDA", what);
}

}  // namespace

base::CudaStream stream_of(const at::Tensor&) {
  refuse("stream_of");
}

namespace cuda {

void adamw(std::span<const UpdateShard>, const StepScalars*, const Clip*, base::CudaStream, bool) {
  refuse("adamw");
}
void choose_scalars(const std::byte*, std::size_t, const Clip*, std::int64_t*, std::byte*, base::CudaStream) {
  refuse("choose_scalars");
}
void decide_update(const double*, double, std::int64_t*, Clip*, base::CudaStream) {
  refuse("decide_update");
}
void row_square_sums(const void*, quant::DType, std::int64_t, std::int64_t, std::int64_t, double*, base::CudaStream) {
  refuse("row_square_sums");
}

void fill_normal(const NormalFill&, void*, quant::DType, base::CudaStream) {
  refuse("fill_normal");
}
void fill_constant(double, void*, quant::DType, std::int64_t, base::CudaStream) {
  refuse("fill_constant");
}

void rms_norm_forward(const RmsNormShape&, const RmsNormForward&, base::CudaStream) {
  refuse("rms_norm_forward");
}
void rms_norm_apply(const RmsNormShape&, const RmsNormApply&, base::CudaStream) {
  refuse("rms_norm_apply");
}
std::int64_t rms_norm_backward_scratch(const RmsNormShape&) {
  refuse("rms_norm_backward");
}
void rms_norm_backward(const RmsNormShape&, const RmsNormBackward&, const RmsNormParts&, base::CudaStream) {
  refuse("rms_norm_backward");
}

void split_rope_forward(const SplitRopeForward&, base::CudaStream) {
  refuse("split_rope_forward");
}
void split_rope_backward(const SplitRopeBackward&, base::CudaStream) {
  refuse("split_rope_backward");
}

void swiglu_forward(const SwigluArguments&, base::CudaStream) {
  refuse("swiglu_forward");
}
void swiglu_backward(const SwigluArguments&, base::CudaStream) {
  refuse("swiglu_backward");
}
void swiglu_forward_cast(const SwigluCast&, base::CudaStream) {
  refuse("swiglu_forward_cast");
}
void swiglu_backward_cast(const SwigluCast&, base::CudaStream) {
  refuse("swiglu_backward_cast");
}

void cross_entropy_maximum(const CrossEntropyShape&, const CrossEntropyMaximum&, base::CudaStream) {
  refuse("cross_entropy_maximum");
}
void cross_entropy_sums(const CrossEntropyShape&, const CrossEntropySums&, base::CudaStream) {
  refuse("cross_entropy_sums");
}
void cross_entropy_finish(const CrossEntropyShape&, const CrossEntropyFinish&, base::CudaStream) {
  refuse("cross_entropy_finish");
}
std::int64_t sum_in_order_scratch(std::int64_t) {
  refuse("sum_in_order");
}
void sum_in_order(const SumInOrder&, base::CudaStream) {
  refuse("sum_in_order");
}

void embedding_forward(const EmbeddingArguments&, base::CudaStream) {
  refuse("embedding_forward");
}
std::int64_t embedding_backward_scratch(const EmbeddingArguments&) {
  refuse("embedding_backward");
}
void embedding_backward(const EmbeddingArguments&, const EmbeddingParts&, base::CudaStream) {
  refuse("embedding_backward");
}

}  // namespace cuda
}  // namespace tessera::ops
