#include "tessera/shard/formats/encoded.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/layout/home.h"

namespace tessera::shard {
namespace {

bool is_whole(const quant::ScaleTile& tile) {
  return tile.rows == 0 && tile.cols == 0;
}

const quant::Encoding& encoding_of(const ShardedParameter& parameter) {
  TESSERA_CHECK(parameter.spec.encoding, "parameter '{}' has no encoding", parameter.spec.name);
  return *parameter.spec.encoding;
}

}  // namespace

std::vector<PlaneSpec> encoded_planes(const quant::Encoding& encoding) {
  std::vector<PlaneSpec> planes{
      {.name = "data", .type = quant::DType::u8, .tile = {.cols = quant::elements_in_byte(encoding.element)}}};
  if (!is_whole(encoding.tile))
    planes.push_back({.name = "scales",
                      .type = quant::scale_type(encoding.scale),
                      .tile = {.rows = encoding.tile.rows, .cols = encoding.tile.cols}});
  return planes;
}

bool has_tensor_scale(const quant::Encoding& encoding) {
  return is_whole(encoding.tile) || encoding.scale == quant::Scale::e4m3;
}

bool has_one_tile(const quant::Encoding& encoding) {
  return is_whole(encoding.tile) && encoding.element != quant::Element::e2m1;
}

void check_tiles(const ParameterSpec& spec, const quant::Encoding& encoding) {
  if (spec.compute_by_slots.empty() || has_one_tile(encoding)) return;
  throw InputError(
      "parameter '{}': the format {} has tiles, which dead places in a tp group would change; expected bf16 or fp8",
      spec.name, name_of(format_of(encoding)));
}

void check_encoding(const ParameterSpec& spec, const ParameterTypes& types) {
  if (!spec.encoding) return;
  check_tiles(spec, *spec.encoding);
  if (!spec.sharded)
    throw InputError(
        "parameter '{}': a number format needs a matrix that is sharded over ranks, got a matrix that every rank "
        "stores whole",
        spec.name);
  if (types.model != quant::DType::bf16)
    throw InputError("parameter '{}': number formats need the type bf16, got {}", spec.name, name_of(types.model));
  const std::vector<PlaneSpec> planes = encoded_planes(*spec.encoding);
  const layout::Layout home = layout::unique_home(spec.compute);
  for (const PlaneSpec& plane : planes)
    if (home != spec.compute && !plane.tile.is_element() &&
        !layout::overlapping_tile_grid(spec.compute, home, plane.tile))
      throw InputError(
          "parameter '{}': parts of compute ranks overlap and begin or end inside a tile of {} x {}; choose a number "
          "format with other tiles",
          spec.name, plane.tile.rows, plane.tile.cols);
  for (const layout::LocalLayout& local : spec.compute.ranks)
    for (const layout::Piece& piece : local.pieces)
      if (piece.box.cols % quant::elements_in_byte(spec.encoding->element) != 0)
        throw InputError("parameter '{}': 4-bit formats need an even number of columns on each compute rank, got {}",
                         spec.name, piece.box.cols);
}

quant::Extent extent_of(const layout::LocalLayout& local) {
  if (local.size == 0) return {};
  const std::int64_t cols = local.pieces.front().stride;  // number of columns of the dense matrix
  return {.rows = local.size / cols, .cols = cols};
}

Matrices compute_matrices(const ShardedParameter& parameter) {
  const quant::Extent whole = extent_of(parameter.local_compute);
  if (parameter.layouts.matrix_rows.empty()) return {.matrix = whole};
  return {.matrix = {.rows = parameter.matrix_rows, .cols = whole.cols}, .count = parameter.matrices()};
}

quant::Quantized encoded_matrix(ShardedParameter& parameter, std::byte* data, std::byte* scales) {
  const quant::Encoding& encoding = encoding_of(parameter);
  std::byte* whole = parameter.tensor_scale.data();
  return {.data = reinterpret_cast<std::uint8_t*>(data),
          .scales = is_whole(encoding.tile) ? whole : scales,
          .tensor_amax = encoding.scale == quant::Scale::e4m3 ? reinterpret_cast<float*>(whole) : nullptr};
}

}  // namespace tessera::shard
