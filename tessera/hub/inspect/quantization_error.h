// The quantization error of a checkpoint's weights, for `tessera inspect --quantization-error`.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/reader.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::hub {

// The difference between a matrix and its dequantized values, both rounded to bf16. Elements that are not finite are
// counted in `not_finite` and do not affect the other numbers.
struct QuantizationError {
  double relative_rms = 0;  // sqrt(sum of squared differences / sum of squared elements); 0 for a matrix of zeros
  double max_error = 0;     // the greatest difference, divided by the greatest magnitude of the matrix
  // Elements whose magnitude exceeds the greatest number of their tile; they are stored as that number.
  std::int64_t saturated = 0;
  std::int64_t underflowed = 0;  // elements other than 0 that are stored as 0
  std::int64_t not_finite = 0;   // infinities and NaNs
};

// Quantizes `values` as one matrix with quant/formats/quantize.h and returns the error. Allocates 10 bytes per element.
// Throws the errors of quant::check_extent, and Error for format bf16.
QuantizationError quantization_error(std::span<const quant::bfloat16> values, quant::Extent matrix,
                                     quant::Format format);

// Parses words of the command line: "all" or names of number formats. Throws InputError for other words and for bf16.
std::vector<quant::Format> parse_error_formats(const std::vector<std::string>& words);

// Returns {FORMAT: {"relative_rms", "max_error", "saturated", "underflowed", "not_finite"}} for a weight with two or
// more dimensions. In a weight with three dimensions, such as one of experts, each matrix is quantized alone:
// "relative_rms" is then the mean over the matrices, "max_error" is the greatest, and the counts are sums. "worst" has
// the "matrix" with the greatest "relative_rms", and this number. The values come from the weight's master if the
// checkpoint has one. For a format that cannot store the weight, the entry is {"error": "..."}. Reads this weight into
// memory. Throws InputError for damaged files of the checkpoint.
nlohmann::json quantization_errors(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& weight,
                                   std::span<const quant::Format> formats);

// Returns the "quantization_error" entries of inspect_checkpoint's tensors as a table. The text is empty without
// entries.
std::string quantization_error_table(const nlohmann::json& tensors);

}  // namespace tessera::hub
