// Reads tensors of a checkpoint with bounded memory: chooses the stored tensor from which a weight is read, and reads a
// tensor some rows at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/checkpoint/reader.h"
#include "tessera/layout/box.h"
#include "tessera/quant/dtype.h"

namespace tessera::hub {

// Returns the stored tensor from which a weight is read in `dtype`. This is the master if `dtype` is wider than the
// stored weight's type and the checkpoint has a master. Otherwise it is the stored weight. Throws InputError if the
// checkpoint does not have the weight.
const checkpoint::StoredTensor& source_of(const checkpoint::CheckpointReader& reader, const std::string& name,
                                          quant::DType dtype);

// Maximum number of elements in one read; a longer row is read as a whole.
inline constexpr std::int64_t kChunkElements = std::int64_t{8} << 20;

// Reads the elements of a box in order, converted to `dtype`, and calls take(data, elements) for each chunk. `data` is
// valid only during the call. Throws the errors of CheckpointReader::read.
void read_rows(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& source,
               const layout::Box& box, quant::DType dtype,
               const std::function<void(const std::byte* data, std::int64_t elements)>& take);

}  // namespace tessera::hub
