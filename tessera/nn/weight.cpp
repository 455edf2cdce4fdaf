#include "tessera/nn/weight.h"

#include "tessera/base/error.h"
#include "tessera/nn/collectives.h"
#include "tessera/ops/aten_types.h"

namespace tessera::nn {
namespace {

at::Tensor shaped(const Context& context, void* data, quant::DType type, const Weight& weight) {
  const at::Device device = ops::to_device(context.program.device());
  if (weight.is_vector) return ops::view_of(data, {weight.cols}, type, device);
  return ops::view_of(data, {weight.rows, weight.cols}, type, device);
}

}  // namespace

ConsumedWeight::ConsumedWeight(const PassState& pass, const Weight& weight) : pass_(pass), weight_(weight) {
  const runtime::WeightView view = pass.context.program.consume(weight.id, pass.id);
  encoded_ = view.encoded;
  columnwise_ = view.columnwise;
  encoding_ = view.encoding;
  if (encoded_) return;
  (view.is_decoded ? decoded_ : tensor_) =
      shaped(pass.context, const_cast<void*>(view.weight().data), view.weight().type, weight);
  whole_ = const_cast<float*>(view.whole);
}

at::Tensor ConsumedWeight::whole(std::int64_t matrices) const {
  if (!ops::needs_whole(encoding_)) return {};
  return ops::view_of(whole_, {matrices}, quant::DType::fp32, ops::to_device(pass_.context.program.device()));
}

ops::Operand ConsumedWeight::operand(ops::Sides side) const {
  const at::Device device = ops::to_device(pass_.context.program.device());
  if (decoded_.defined()) return ops::decoded_weight(decoded_, encoding_, side, whole(1));
  const quant::Extent extent{.rows = weight_.rows, .cols = weight_.cols};
  if (encoded_ && side == ops::Sides::rows) return ops::borrowed_weight(*encoded_, extent, encoding_, device);
  if (encoded_) {
    TESSERA_CHECK(columnwise_, "a weight's operand by columns is read outside of a backward pass");
    return ops::borrowed_columns(*columnwise_, extent, encoding_, device);
  }
  const quant::Encoding encoding = quant::weight_encoding(weight_.product);
  if (!ops::needs_whole(encoding)) return ops::weight_operand(tensor_, weight_.product, side, {});
  at::Tensor amax = ops::amax_of(tensor_);
  all_reduce_tp(pass_, amax, comm::ReduceOp::max);
  return ops::weight_operand(tensor_, weight_.product, side, ops::whole_scale(encoding, amax));
}

std::optional<ops::StackFactor> ConsumedWeight::stored_stack(std::int64_t matrices, ops::Sides side,
                                                             quant::ProductKernel kernel) const {
  if (decoded_.defined())
    return ops::StackFactor{.values = decoded_, .codes = {}, .encoding = encoding_, .whole = whole(matrices)};
  if (!encoded_) return std::nullopt;
  const quant::Extent matrix{.rows = matrices == 0 ? 0 : weight_.rows / matrices, .cols = weight_.cols};
  const at::Device device = ops::to_device(pass_.context.program.device());
  if (side == ops::Sides::rows || kernel == quant::ProductKernel::decoded)
    return ops::stored_stack({*encoded_, matrix, matrices, encoding_}, kernel, device);
  TESSERA_CHECK(columnwise_, "a stack's codes by columns are read outside of a backward pass");
  return ops::copied_stack({*columnwise_, matrix, matrices, encoding_}, device);
}

ConsumedWeight::~ConsumedWeight() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) return;
  pass_.context.program.release(weight_.id, pass_.id);
}

bool is_trainable(const Context& context, const Weight& weight) {
  return context.program.parameters().spec(weight.id).trainable;
}

at::Tensor gradient_tensor(const Context& context, const runtime::GradientBuffer& buffer, const Weight& weight) {
  return shaped(context, buffer.data, buffer.dtype, weight);
}

}  // namespace tessera::nn
