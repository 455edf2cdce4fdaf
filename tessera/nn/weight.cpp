#include "tessera/nn/weight.h"

#include "tessera/ops/aten_types.h"

namespace tessera::nn {
namespace {

at::Tensor shaped(Context& context, void* data, quant::DType type, const Weight& weight) {
  const at::Device device = ops::to_device(context.runtime.parallel().device);
  if (weight.is_vector) return ops::view_of(data, {weight.cols}, type, device);
  return ops::view_of(data, {weight.rows, weight.cols}, type, device);
}

}  // namespace

ConsumedWeight::ConsumedWeight(Context& context, const Weight& weight, schedule::Pass pass)
    : context_(context), id_(weight.id), pass_(pass) {
  const runtime::WeightView::Plane view = context.runtime.consume(weight.id, pass).weight();
  tensor_ = shaped(context, const_cast<void*>(view.data), view.type, weight);
}

ConsumedWeight::~ConsumedWeight() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) return;
  context_.runtime.release(id_, pass_);
}

bool is_trainable(Context& context, const Weight& weight) {
  return context.runtime.parameter(weight.id).spec.trainable;
}

at::Tensor gradient_tensor(Context& context, const runtime::GradientBuffer& buffer, const Weight& weight) {
  return shaped(context, buffer.data, buffer.dtype, weight);
}

}  // namespace tessera::nn
