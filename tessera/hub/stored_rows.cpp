#include "tessera/hub/stored_rows.h"

#include <algorithm>

#include "tessera/base/memory/buffer.h"
#include "tessera/quant/elementwise.h"

namespace tessera::hub {

const checkpoint::StoredTensor& source_of(const checkpoint::CheckpointReader& reader, const std::string& name,
                                          quant::DType dtype) {
  const checkpoint::StoredTensor& weight = reader.tensor(name, checkpoint::Kind::weight);
  const checkpoint::StoredTensor* master = reader.find(name, checkpoint::Kind::master);
  return master != nullptr && quant::size_of(dtype) > quant::size_of(weight.dtype) ? *master : weight;
}

void read_rows(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& source,
               const layout::Box& box, quant::DType dtype,
               const std::function<void(const std::byte* data, std::int64_t elements)>& take) {
  if (box.elements() == 0) return;
  const std::int64_t rows = std::clamp<std::int64_t>(kChunkElements / box.cols, 1, box.rows);
  base::Buffer raw(static_cast<std::size_t>(rows * box.cols) * quant::size_of(source.dtype));
  base::Buffer cast(static_cast<std::size_t>(rows * box.cols) * quant::size_of(dtype));
  for (std::int64_t row = 0; row < box.rows; row += rows) {
    const layout::Box part{box.row + row, std::min(rows, box.rows - row), box.col, box.cols};
    reader.read({.name = source.name,
                 .kind = source.kind,
                 .dtype = source.dtype,
                 .dims = source.dims,
                 .local = {.pieces = {{part, 0, part.cols}}, .size = part.elements()},
                 .data = raw.data()});
    quant::cast(raw.data(), source.dtype, cast.data(), dtype, part.elements());
    take(cast.data(), part.elements());
  }
}

}  // namespace tessera::hub
