// Matrices of experts as arguments of CUDA kernels. All pointers are memory of one device. Internal to ops.
#pragma once
#include <cstdint>

#include "tessera/quant/bfloat16.h"
#include "tessera/quant/formats/encoding.h"
#include "tessera/quant/formats/stochastic_rounding.h"

namespace tessera::ops {

// Matrices that are stacked by rows in one bf16 matrix [room, cols]. Matrix i ends at row ends[i] and begins where the
// matrix before it ends. Rows after the last matrix are never read. If `ends` is null, each matrix has `height` rows.
struct StackedRows {
  const quant::bfloat16* values = nullptr;
  std::int64_t room = 0, cols = 0;
  std::int64_t matrices = 0;
  const std::int32_t* ends = nullptr;
  std::int64_t height = 0;
};

// The positions of matrices with `ends`. A strip has rows of one matrix.
struct StripPlaces {
  std::int32_t* strip_ends = nullptr;   // [matrices]: the number of strips of this matrix and the matrices before it
  std::int32_t* result_ends = nullptr;  // [matrices]: the ends in a result whose matrices begin at multiples of 16 rows
};

// The numbers of the whole matrices, one for each matrix; one for all if `is_one` is true.
struct MatrixNumbers {
  const float* values = nullptr;
  bool is_one = false;
};

// Arguments to quantize and decode stacked matrices, as decode_operand of quant/formats/decoded.h does for each of
// them. The rows and columns of tiles are those of the encoding; tiles begin again at each matrix.
struct GroupedCast {
  StackedRows source;
  quant::Encoding encoding;
  StripPlaces places;           // for strips of strip_rows(encoding); not read if source.ends is null
  MatrixNumbers scales;         // OperandSource::whole
  std::int64_t per_expert = 1;  // matrix i has rows of expert i / per_expert
  // If `multiplies` is true, decoded values are multiplied by alpha of a product with a matrix of the same expert in
  // another stack. The product is rounded to fp32 and then to bf16.
  bool multiplies = false;
  MatrixNumbers own, partner;  // the numbers of product_alpha
  quant::Encoding partner_encoding;
  quant::bfloat16* target = nullptr;  // [rows, cols]
  // True: the matrices of the result begin at multiples of 16 rows, with zeros between. Otherwise they begin where they
  // begin in the source.
  bool is_spread = false;
  float* amax = nullptr;  // raised to the greatest magnitude of all matrices; null: not computed
  // With tiles of 16 x 1 of nvfp4: each matrix is transformed before it is quantized (quant/formats/hadamard.h). The
  // result is spread, and `scales` are those of the transformed matrices.
  bool transform = false;
  // With tiles of 1 x 16 or 16 x 1 of nvfp4, rounds the matrices of an expert as a matrix of the stack. A row has the
  // token first_token + row_tokens[row]; if row_tokens is null, first_token + the index of the row in its matrix.
  quant::StackRounding rounding;
  const std::int32_t* row_tokens = nullptr;  // by row of the source
};

struct GroupedAmaxes {
  StackedRows source;
  StripPlaces places;       // for strips of 16 rows
  float* amaxes = nullptr;  // [matrices]; the kernel only raises them
  bool transform = false;   // the amaxes are those of the transformed matrices
};

// Returns the number of rows of a strip: the rows of a tile, at least 16.
constexpr std::int64_t strip_rows(const quant::Encoding& encoding) {
  return encoding.tile.rows < 16 ? 16 : encoding.tile.rows;
}

}  // namespace tessera::ops
