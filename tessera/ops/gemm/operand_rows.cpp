// Operands that contain some rows of a matrix, for products with some tokens.
#include "tessera/base/error.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/gemm/whole_cast.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// The padding in rows, and the alignment in bytes, that GPU products need (operand.h, gemm_device.h).
constexpr std::int64_t kRowPadding = 16, kCodeAlignment = 256;
// On a CPU: with this alignment, the bits of the libraries' results do not depend on the address.
constexpr std::uintptr_t kHostAlignment = 64;

// Returns the codes of the rows with padding. The padding contains zeros or the codes of later rows. This does not
// change results, because products compute each row separately, and the rows of the padding are not part of the result.
at::Tensor codes_of_rows(const at::Tensor& codes, std::int64_t begin, std::int64_t size) {
  const std::int64_t padded = (size + kRowPadding - 1) / kRowPadding * kRowPadding;
  if (begin * codes.size(1) % kCodeAlignment == 0 && begin + padded <= codes.size(0))
    return codes.narrow(0, begin, padded);
  at::Tensor copy = make({padded, codes.size(1)}, codes.scalar_type(), codes.device());
  copy.narrow(0, 0, size).copy_(codes.narrow(0, begin, size));
  copy.narrow(0, size, padded - size).zero_();
  return copy;
}

// Returns the scales of the rows for tiles that extend along a row: [tiles of a row, rows], with the padding of the
// codes.
at::Tensor scales_of_rows(const at::Tensor& scales, std::int64_t begin, std::int64_t size, std::int64_t padded) {
  at::Tensor copy = make({scales.size(0), padded}, scales.scalar_type(), scales.device());
  copy.narrow(1, 0, size).copy_(scales.narrow(1, begin, size));
  copy.narrow(1, size, padded - size).zero_();
  return copy;
}

}  // namespace

Operand operand_of_rows(const Operand& rows, std::int64_t begin, std::int64_t size) {
  TESSERA_CHECK(rows.defined() && begin >= 0 && size >= 0 && begin + size <= rows.extent.rows,
                "operand_of_rows: rows {} to {}, expected rows below {}", begin, begin + size, rows.extent.rows);
  TESSERA_CHECK(has_one_scale(rows.encoding) || rows.encoding.tile.rows == 1,
                "operand_of_rows: a tile of scales covers {} rows, expected 1", rows.encoding.tile.rows);
  Operand part{.extent = {.rows = size, .cols = rows.extent.cols}, .encoding = rows.encoding, .amax = rows.amax};
  if (rows.values.defined()) {
    TESSERA_CHECK(!rows.is_transposed, "operand_of_rows: got an operand by columns");
    part.values = rows.values.narrow(0, begin, size);
    // Products on a GPU copy values that are not aligned.
    if (part.values.is_cpu() && reinterpret_cast<std::uintptr_t>(part.values.const_data_ptr()) % kHostAlignment != 0)
      part.values = part.values.clone();
    return part;
  }
  part.codes = codes_of_rows(rows.codes, begin, size);
  part.scales = rows.scales;
  if (!has_one_scale(rows.encoding) && rows.scales.defined())
    part.scales = scales_of_rows(rows.scales, begin, size, part.codes.size(0));
  return part;
}

}  // namespace tessera::ops
