#include "tessera/nn/parallel/token_wire.h"

namespace tessera::nn {

std::optional<runtime::TpWireFallback> wire_fallback(const TokenGather& gather) {
  using enum runtime::TpWireFallback;
  if (gather.sides == ops::Sides::rows || has_one_scale(gather.encoding)) return std::nullopt;
  if (gather.transforms_columns) return transform;
  if (!gather.begins_at_tiles) return tiles;
  if (gather.sides == ops::Sides::columns) return std::nullopt;
  const auto bytes_of = [&](ops::Sides side) { return bytes_of_codes(gather.encoding, gather.matrix, side); };
  const auto whole = gather.matrix.elements() * static_cast<std::int64_t>(quant::size_of(quant::DType::bf16));
  if (bytes_of(ops::Sides::rows) + bytes_of(ops::Sides::columns) >= whole) return both_sides;
  return std::nullopt;
}

bool begins_at_tiles(const Context& context, std::int64_t tokens, std::int64_t tile) {
  if (!context.program.compute_group(0).shapes.empty()) return false;
  for (int rank = 0; rank < context.tp_size(); ++rank)
    if (context.split.part(tokens, rank, context.tp_size()).begin % tile != 0) return false;
  return true;
}

TokenPart TokenCodes::part(const at::Tensor& codes, ops::Sides side) const {
  TokenPart part{.own = codes, .counts = {}, .format = format};
  for (const std::int64_t rows : tokens)
    part.counts.push_back(bytes_of_codes(encoding, {.rows = rows, .cols = cols}, side));
  return part;
}

ops::Operand TokenCodes::operand(const at::Tensor& codes, const layout::Range& ranks, ops::Sides side) const {
  return operand_of_gathered({.bytes = codes,
                              .rows = {tokens.begin() + ranks.begin, tokens.begin() + ranks.end},
                              .cols = cols,
                              .encoding = encoding,
                              .whole = whole},
                             side);
}

bool has_coded_wire(const Context& context, const Weight& weight) {
  return weight.product != quant::Format::bf16 && context.products.tp_wire == weight.product &&
         context.sequence_parallel && context.has_tp();
}

}  // namespace tessera::nn
