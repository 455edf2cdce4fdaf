#include "tessera/ops/gemm/operand_codes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <numeric>
#include <utility>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/gemm/operand_parts.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/cuda_table.h"
#include "tessera/quant/formats/columnwise.h"
#include "tessera/quant/formats/decoded.h"

namespace tessera::ops {
namespace {

using quant::Encoding, quant::Extent, quant::Quantized;

// GPU kernels read vectors of this size.
constexpr std::int64_t kCodesPadding = 16;

// The encoding of a side's tiles in the order of the matrix.
Encoding tiles_of(const Encoding& by_rows, Sides side) {
  return side == Sides::rows ? by_rows : quant::by_columns(by_rows);
}

// The bytes of one rank, for one side.
struct RankBytes {
  Encoding tiles;
  Extent matrix, stored;
  std::int64_t codes = 0, end = 0;  // position of the codes, and of the end

  RankBytes(const Encoding& by_rows, Extent rows, Sides side)
      : tiles(tiles_of(by_rows, side)), matrix(rows), stored(stored_extent(tiles, rows)) {
    const std::int64_t data = data_bytes(tiles.element, stored.elements());
    if (has_one_scale(tiles)) {
      end = data;
      return;
    }
    const std::int64_t scales = scale_extent(tiles, stored).elements() * size_of(scale_type(tiles.scale));
    codes = base::ceil_div(scales, kCodesPadding) * kCodesPadding;
    end = codes + base::ceil_div(data, kCodesPadding) * kCodesPadding;
  }
  Quantized at(std::uint8_t* bytes) const { return {.data = bytes + codes, .scales = bytes}; }
};

// Calls visit(bytes of a rank, its address, its first row) for each rank with rows.
void for_each_rank(const GatheredCodes& codes, Sides side,
                   const std::function<void(const RankBytes&, std::uint8_t*, std::int64_t)>& visit) {
  auto* bytes = data_of<std::uint8_t>(codes.bytes);
  std::int64_t first = 0;
  for (const std::int64_t rows : codes.rows) {
    const RankBytes rank(codes.encoding, {.rows = rows, .cols = codes.cols}, side);
    if (rank.matrix.elements() > 0) visit(rank, bytes, first);
    bytes += rank.end;
    first += rows;
  }
}

// In fp8_block, GPU operands have scales with the index of the tile first, and operands by columns are transposed.
// These functions return views of one rank's bytes in the same order.
struct BlockViews {
  at::Tensor codes, scales;
};
BlockViews block_views(const RankBytes& rank, std::uint8_t* bytes, Sides side, at::Device device) {
  const bool by_rows = side == Sides::rows;
  const Extent codes = by_rows ? rank.matrix : transposed(rank.matrix), tiles = scale_extent(rank.tiles, rank.matrix);
  const Extent scales = by_rows ? transposed(tiles) : tiles;
  const Quantized planes = rank.at(bytes);
  return {.codes = view_of(planes.data, {codes.rows, codes.cols}, quant::DType::u8, device),
          .scales = view_of(planes.scales, {scales.rows, scales.cols}, quant::DType::fp32, device)};
}

void write_blocks(const Operand& operand, const RankBytes& rank, const at::Tensor& bytes, Sides side) {
  const BlockViews views = block_views(rank, data_of<std::uint8_t>(bytes), side, bytes.device());
  views.codes.copy_(operand.codes.narrow(0, 0, operand.extent.rows).narrow(1, 0, operand.extent.cols));
  views.scales.copy_(operand.scales.narrow(1, 0, operand.extent.rows));
}

// The bytes of both sides.
struct CodedRows {
  const at::Tensor& source;
  const Quantization& as;
  RankBytes rows, columns;
  OperandCodes codes;

  CodedRows(const at::Tensor& matrix, const Quantization& how)
      : source(matrix),
        as(how),
        rows(how.encoding, extent_of(matrix), Sides::rows),
        columns(how.encoding, extent_of(matrix), Sides::columns) {
    if (has(how.sides, Sides::rows)) codes.rows = make({rows.end}, at::kByte, matrix.device());
    if (has(how.sides, Sides::columns)) codes.columns = make({columns.end}, at::kByte, matrix.device());
  }
};

void write_on_host(const CodedRows& to) {
  const auto write = [&](const RankBytes& rank, const at::Tensor& bytes, const at::Tensor& amax) {
    if (!bytes.defined()) return;
    quantize_operand({.values = data_of<quant::bfloat16>(to.source),
                      .matrix = rank.matrix,
                      .encoding = rank.tiles,
                      .whole = number(amax),
                      .rounding = to.as.rounding},
                     rank.at(data_of<std::uint8_t>(bytes)));
  };
  write(to.rows, to.codes.rows, to.as.whole.rows.amax);
  write(to.columns, to.codes.columns, to.as.whole.columns.amax);
}

void write_decoded(const CodedRows& to) {
  const auto side = [&](const RankBytes& rank, const at::Tensor& bytes, const at::Tensor& amax) -> quant::OperandSide {
    if (!bytes.defined()) return {};
    return {.whole = amax.defined() ? amax.const_data_ptr<float>() : nullptr,
            .stored = rank.at(data_of<std::uint8_t>(bytes))};
  };
  const quant::OperandCast cast{.source = data_of<quant::bfloat16>(to.source),
                                .matrix = extent_of(to.source),
                                .encoding = to.as.encoding,
                                .rows = side(to.rows, to.codes.rows, to.as.whole.rows.amax),
                                .columns = side(to.columns, to.codes.columns, to.as.whole.columns.amax),
                                .rounding = to.as.rounding};
  quant::require_cuda("codes of operands").cast_operand(cast, stream_of(to.source));
}

void write_on_device(const CodedRows& to) {
  if (is_decoded(to.as.encoding)) return write_decoded(to);
  const Operands operands = quantize(to.source, to.as);
  if (to.codes.rows.defined()) write_blocks(operands.rows, to.rows, to.codes.rows, Sides::rows);
  if (to.codes.columns.defined()) write_blocks(operands.columns, to.columns, to.codes.columns, Sides::columns);
}

std::int64_t all_rows(const GatheredCodes& codes) {
  return std::accumulate(codes.rows.begin(), codes.rows.end(), std::int64_t{0});
}

// Decodes the ranks' codes to a bf16 matrix with the stored extent. On a GPU, one launch serves many ranks.
void decode_ranks(const GatheredCodes& codes, Sides side, const at::Tensor& values) {
  std::vector<quant::Dequantization> work;
  auto* target = data_of<quant::bfloat16>(values);
  for_each_rank(codes, side, [&](const RankBytes& rank, std::uint8_t* bytes, std::int64_t first) {
    quant::bfloat16* rows = target + first * rank.stored.cols;
    if (values.is_cpu()) return decode(rank.at(bytes), rank.stored, rank.tiles, rows);
    work.push_back(
        {.source = rank.at(bytes), .matrix = rank.stored, .encoding = rank.tiles, .target = rows, .decoded = true});
  });
  if (!work.empty()) quant::require_cuda("codes of operands").dequantize(work, stream_of(values));
}

Operand decoded_operand(const GatheredCodes& codes, Sides side) {
  const Encoding tiles = tiles_of(codes.encoding, side);
  const Extent stored = stored_extent(tiles, {.rows = all_rows(codes), .cols = codes.cols});
  at::Tensor values = make({stored.rows, stored.cols}, at::kBFloat16, codes.bytes.device());
  if (is_dry(values))
    report(memory_work("decode", bytes_of({codes.bytes, values})));
  else
    decode_ranks(codes, side, values);
  values = values.narrow(1, 0, codes.cols).contiguous();
  return decoded_weight(values, tiles, side, codes.whole.amax);
}

// CPU: returns the operand with fp32 scales from the values of the ranks' codes.
Operand host_block_operand(const GatheredCodes& codes, Sides side) {
  const Extent extent{.rows = all_rows(codes), .cols = codes.cols};
  const at::Tensor values = make({extent.rows, extent.cols}, at::kFloat);
  for_each_rank(codes, side, [&](const RankBytes& rank, std::uint8_t* bytes, std::int64_t first) {
    dequantize(rank.at(bytes), rank.matrix, rank.tiles, data_of<float>(values) + first * codes.cols);
  });
  if (side == Sides::rows) return {.extent = extent, .encoding = codes.encoding, .values = values};
  return {.extent = transposed(extent), .encoding = codes.encoding, .values = values.t().contiguous()};
}

// GPU and dry run: copies the ranks' codes and scales to an operand with padding.
Operand device_block_operand(const GatheredCodes& codes, Sides side) {
  const bool by_rows = side == Sides::rows;
  const Extent matrix{.rows = all_rows(codes), .cols = codes.cols};
  const Extent extent = by_rows ? matrix : transposed(matrix), tiles = scale_extent(codes.encoding, extent);
  const Extent padded = quant::padded_codes(extent);
  const at::TensorOptions options = codes.bytes.options();
  Operand result{.extent = extent,
                 .encoding = codes.encoding,
                 .codes = at::empty({padded.rows, padded.cols}, options),
                 .scales = at::zeros({tiles.cols, padded.rows}, options.dtype(at::kFloat))};
  if (is_dry(codes.bytes)) {
    report(memory_work("decode", bytes_of({codes.bytes, result.codes, result.scales})));
    return result;
  }
  if (result.codes.numel() != extent.elements()) result.codes.zero_();
  for_each_rank(codes, side, [&](const RankBytes& rank, std::uint8_t* bytes, std::int64_t first) {
    const BlockViews views = block_views(rank, bytes, side, codes.bytes.device());
    const std::int64_t first_tile = by_rows ? 0 : first / rank.tiles.tile.rows;
    result.codes.narrow(by_rows ? 0 : 1, first, rank.matrix.rows)
        .narrow(by_rows ? 1 : 0, 0, rank.matrix.cols)
        .copy_(views.codes);
    result.scales.narrow(0, first_tile, views.scales.size(0))
        .narrow(1, by_rows ? first : 0, views.scales.size(1))
        .copy_(views.scales);
  });
  return result;
}

}  // namespace

std::int64_t bytes_of_codes(const Encoding& encoding, Extent rows, Sides side) {
  return RankBytes(encoding, rows, side).end;
}

OperandCodes operand_codes(const at::Tensor& rows, const Quantization& as) {
  if (has_one_scale(as.encoding)) return {.rows = fp8_codes(rows, as.encoding, as.whole.rows, as.amax).flatten()};
  TESSERA_CHECK(as.encoding.tile.rows == 1, "codes of operands: a tile covers {} rows, expected 1",
                as.encoding.tile.rows);
  TESSERA_CHECK(!as.transform || as.sides == Sides::rows,
                "codes of operands: expected columns that are not transformed");
  const at::Tensor source = dense_like(rows, rows.sizes(), at::kBFloat16, "operand_codes rows");
  CodedRows to(source, as);
  if (is_dry(source))
    report(memory_work("quantize", bytes_of({source, to.codes.rows, to.codes.columns})));
  else if (source.numel() > 0)
    on_cuda(source) ? write_on_device(to) : write_on_host(to);
  return to.codes;
}

Operand operand_of_gathered(const GatheredCodes& codes, Sides side) {
  if (has_one_scale(codes.encoding)) {
    const at::Tensor matrix = codes.bytes.view({all_rows(codes), codes.cols});
    Operands operands = operands_of_codes(matrix, codes.encoding, side, codes.whole);
    return side == Sides::rows ? std::move(operands.rows) : std::move(operands.columns);
  }
  if (is_decoded(codes.encoding)) return decoded_operand(codes, side);
  return codes.bytes.is_cpu() ? host_block_operand(codes, side) : device_block_operand(codes, side);
}

}  // namespace tessera::ops
