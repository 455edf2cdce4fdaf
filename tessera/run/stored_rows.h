// Reads stored tensors: the source of a weight in a type, and the elements of a tensor some rows at a time, so that
// memory is bounded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/checkpoint/reader.h"
#include "tessera/layout/box.h"
#include "tessera/quant/dtype.h"

namespace tessera::run {

// Returns the stored tensor from which a weight is read in `dtype`: the master if that type is wider than the weight's
// and the checkpoint has a master, else the weight. Throws InputError if the checkpoint does not have the weight.
const checkpoint::StoredTensor& source_of(const checkpoint::CheckpointReader& reader, const std::string& name,
                                          quant::DType dtype);

inline constexpr std::int64_t kChunkElements = std::int64_t{8} << 20;  // elements read at once, or one row

// Calls take(data, elements) for the elements of a box of the tensor, in order and cast to `dtype`. `data` is valid
// only during the call. Throws the errors of CheckpointReader::read.
void read_rows(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& source,
               const layout::Box& box, quant::DType dtype,
               const std::function<void(const std::byte* data, std::int64_t elements)>& take);

}  // namespace tessera::run
