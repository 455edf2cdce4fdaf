#include "tessera/shard/parameter.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/quant/formats/product_kernel.h"

namespace tessera::shard {

Unpacked unpacked_to(const ParameterSpec& spec) {
  if (!spec.encoding) return Unpacked::nothing;
  if (spec.product == quant::Format::bf16 || spec.looked_up) return Unpacked::values;
  const quant::Encoding as_multiplied =
      spec.is_backward_weight ? quant::columnwise_encoding(spec.product) : quant::weight_encoding(spec.product);
  if (*spec.encoding != as_multiplied) return Unpacked::values;
  const quant::ProductKernel of_stack = spec.is_backward_weight ? spec.kernels.dgrad : spec.kernels.fprop;
  const bool is_decoded =
      spec.dims.size() == 3 ? of_stack == quant::ProductKernel::decoded : quant::is_decoded(spec.product);
  return is_decoded ? Unpacked::decoded : Unpacked::nothing;
}

bool reads_columnwise(const ParameterSpec& spec) {
  const bool is_native = spec.dims.size() != 3 || spec.kernels.dgrad == quant::ProductKernel::native;
  return spec.encoding && is_native && !is_unpacked(spec) && (spec.is_backward_weight || !spec.backward);
}

bool is_quantized_at_use(const ParameterSpec& spec) {
  if (spec.product == quant::Format::bf16) return false;
  if (!spec.encoding || unpacked_to(spec) == Unpacked::values) return true;
  return spec.backward && is_quantized_at_use(backward_weight(spec));
}

ParameterSpec backward_weight(const ParameterSpec& spec) {
  TESSERA_CHECK(spec.backward, "parameter '{}' has the same format in both passes", spec.name);
  ParameterSpec backward_weight = spec;
  backward_weight.name += " (backward)";
  backward_weight.encoding = spec.backward->encoding;
  backward_weight.backward.reset();
  backward_weight.reads = {};
  backward_weight.trainable = false;
  backward_weight.is_backward_weight = true;
  return backward_weight;
}

std::int64_t ShardedParameter::columns_of_sum(int replicas) const {
  if (!spec.trainable || !spec.sharded || row_gradients || replicas > 1 || local_storage.pieces.empty()) return 0;
  if (layouts.groups.size() > 1) return 0;  // in this case, the parts of a row may come from different ranks
  const std::int64_t columns = local_storage.pieces.front().box.cols;
  std::int64_t end = 0;
  for (const layout::Piece& piece : local_storage.pieces) {
    if (piece.offset != end || piece.box.cols != columns || piece.stride != columns) return 0;
    end += piece.box.elements();
  }
  return end == local_storage.size ? columns : 0;
}

const std::uint8_t* ShardedParameter::states_of_rows(int replicas) const {
  return row_gradients && replicas == 1 ? reinterpret_cast<const std::uint8_t*>(row_states.data()) : nullptr;
}

layout::LocalLayout counted_part(const ShardedParameter& parameter) {
  const Place& place = parameter.place;
  const std::vector<layout::LocalLayout>& used = parameter.layouts.compute.ranks;
  const auto first_of_part = std::ranges::find(used, parameter.local_compute) - used.begin();
  const bool is_first = place.duplicate == 0 && (place.replica == 0 || parameter.splits_state()) &&
                        (parameter.layouts.is_cut || (place.part == 0 && first_of_part == place.compute));
  return is_first ? parameter.local_state : layout::LocalLayout{};
}

}  // namespace tessera::shard
