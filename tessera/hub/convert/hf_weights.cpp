#include "tessera/hub/convert/hf_weights.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/hub/stored_rows.h"
#include "tessera/quant/elementwise.h"

namespace tessera::hub {
namespace {

using layout::Box;

constexpr std::int64_t kSparse = 16;  // rows are read one by one if less than 1/16 of each row is requested

// Returns how many rows one read covers, including the columns outside the box.
std::int64_t rows_at_once(const Box& box, std::int64_t stride) {
  if (stride > kSparse * box.cols) return 1;
  return std::clamp<std::int64_t>(kChunkElements / stride, 1, box.rows);
}

}  // namespace

HfWeights::HfWeights(const std::filesystem::path& folder) : folder_(folder) {
  const std::vector<models::HfTensor> parts = folder_.tensors();
  for (models::LogicalTensor& tensor : logical_tensors(parts)) tensors_[tensor.name].dims = std::move(tensor.dims);
  for (const models::HfTensor& part : parts) {
    tensors_[part.name].parts.push_back(part);
    non_finite_.add(part.hf_name, 0, 0);
  }
}

// `box` is a box of the logical tensor and is inside `part` and `piece`.
void HfWeights::read_part(const models::HfTensor& part, const Box& box, const layout::Piece& piece,
                          const checkpoint::LoadTensor& request, bool is_counted) {
  const quant::DType wide = quant::accumulator_of(request.dtype);
  const auto wide_bytes = static_cast<std::int64_t>(quant::size_of(wide));
  const auto element = static_cast<std::int64_t>(quant::size_of(request.dtype));
  const std::int64_t stride = part.box.cols, rows = rows_at_once(box, stride);
  base::Buffer chunk(static_cast<std::size_t>(((rows - 1) * stride + box.cols) * wide_bytes));
  for (std::int64_t row = box.row; row < box.row + box.rows; row += rows) {
    const std::int64_t count = std::min(rows, box.row + box.rows - row);
    const std::int64_t first = (row - part.box.row) * stride + (box.col - part.box.col);
    folder_.read(part.hf_name, first, (count - 1) * stride + box.cols, wide, chunk.data());
    const bool is_dense = box.cols == stride && piece.stride == stride;
    const std::int64_t lines = is_dense ? 1 : count, line = is_dense ? count * stride : box.cols;
    for (std::int64_t i = 0; i < lines; ++i) {
      std::byte* target =
          static_cast<std::byte*>(request.data) +
          (piece.offset + (row + i - piece.box.row) * piece.stride + (box.col - piece.box.col)) * element;
      quant::cast(chunk.data() + i * stride * wide_bytes, wide, target, request.dtype, line);
      if (is_counted && request.kind == checkpoint::Kind::weight)
        non_finite_.count(part.hf_name, target, request.dtype, line);
    }
  }
}

void HfWeights::read(const checkpoint::LoadTensor& request, bool is_counted) {
  const auto found = tensors_.find(request.name);
  if (found == tensors_.end())
    throw Error("'{}': the model of the Hugging Face folder does not have this tensor", request.name);
  TESSERA_CHECK(found->second.dims == request.dims, "'{}': the shape of the request differs from that of the model",
                request.name);
  for (const models::HfTensor& part : found->second.parts)
    for (const layout::Piece& piece : request.local.pieces)
      if (const auto common = layout::intersect(part.box, piece.box))
        read_part(part, *common, piece, request, is_counted);
}

}  // namespace tessera::hub
