#include "tessera/base/error.h"
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/experts/grouped_casts.h"
#include "tessera/ops/experts/grouped_codes.h"
#include "tessera/ops/experts/grouped_device.h"
#include "tessera/ops/router/bias_update.h"

namespace tessera::ops::cuda {
namespace {

[[noreturn]] void refuse_experts() {
  throw Error("experts: this build has no CUDA");
}

}  // namespace

void router_logits(const RouterProductArguments&, base::CudaStream) {
  refuse_experts();
}
void router_dgrad(const RouterProductArguments&, base::CudaStream) {
  refuse_experts();
}
void router_wgrad(const RouterProductArguments&, base::CudaStream) {
  refuse_experts();
}
void route(const RouteArguments&, base::CudaStream) {
  refuse_experts();
}
void router_sums(const RouterSumsArguments&, base::CudaStream) {
  refuse_experts();
}
void route_backward(const RouteBackwardArguments&, base::CudaStream) {
  refuse_experts();
}

void drop_beyond_capacity(const CapacityArguments&, base::CudaStream) {
  refuse_experts();
}
std::int64_t select_rows_scratch(std::int64_t, std::int64_t) {
  refuse_experts();
}
void select_rows(const SelectRowsArguments&, base::CudaStream) {
  refuse_experts();
}
void take_rows(const MoveRowsArguments&, base::CudaStream) {
  refuse_experts();
}
void combine_rows(const MoveRowsArguments&, base::CudaStream) {
  refuse_experts();
}
void take_choices(const MoveChoicesArguments&, base::CudaStream) {
  refuse_experts();
}
void put_choices(const MoveChoicesArguments&, base::CudaStream) {
  refuse_experts();
}

void weighted_swiglu(const WeightedSwigluArguments&, base::CudaStream) {
  refuse_experts();
}
void weighted_swiglu_backward(const WeightedSwigluArguments&, base::CudaStream) {
  refuse_experts();
}

void update_router_biases(std::span<const RouterBiasPart>, const RouterBiasRule&, const Clip*, base::CudaStream) {
  refuse_experts();
}

void plain_product(const PlainProductArguments&, base::CudaStream) {
  refuse_experts();
}
void grouped_fprop(const at::Tensor&, const at::Tensor&, const Selection&, at::Tensor&) {
  refuse_experts();
}
void grouped_dgrad(const at::Tensor&, const at::Tensor&, const Selection&, at::Tensor&) {
  refuse_experts();
}
void grouped_wgrad(const at::Tensor&, const at::Tensor&, const Selection&, at::Tensor&) {
  refuse_experts();
}
void find_places(const StackedRows&, std::int64_t, const StripPlaces&, base::CudaStream, int) {
  refuse_experts();
}
void take_grouped_amaxes(const GroupedAmaxes&, base::CudaStream) {
  refuse_experts();
}
void cast_grouped(const GroupedCast&, base::CudaStream) {
  refuse_experts();
}
void scales_of_amaxes(const quant::Encoding&, const float*, std::int64_t, float*, float*, base::CudaStream) {
  refuse_experts();
}
void cast_codes(const CodesCast&, base::CudaStream) {
  refuse_experts();
}
void multiply_row_codes(const CodesProduct&, at::Tensor&) {
  refuse_experts();
}
void multiply_inner_codes(const CodesProduct&, at::Tensor&) {
  refuse_experts();
}

}  // namespace tessera::ops::cuda
