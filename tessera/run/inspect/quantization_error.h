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

namespace tessera::run {

// The difference between a matrix and its dequantized values, both rounded to bf16. Elements that are not finite are
// counted in `not_finite` and ignored otherwise.
struct QuantizationError {
  double relative_rms = 0;       // sqrt(sum of squared differences / sum of squared elements); 0 if all are 0
  double max_error = 0;          // the greatest difference, relative to the greatest magnitude
  std::int64_t saturated = 0;    // elements above the greatest number of their tile, stored as that number
  std::int64_t underflowed = 0;  // elements other than 0 that are stored as 0
  std::int64_t not_finite = 0;   // infinities and NaNs
};

// Quantizes `values` as one matrix by the definition of quant/formats/quantize.h. Uses 10 bytes per element beside
// `values`. Throws as quant::check_extent does, and for format bf16.
QuantizationError quantization_error(std::span<const quant::bfloat16> values, quant::Extent matrix,
                                     quant::Format format);

// Parses words of the command line: "all" or the name of a format. Throws InputError for other words, bf16 included.
std::vector<quant::Format> parse_error_formats(const std::vector<std::string>& words);

// Returns {FORMAT: {"relative_rms", "max_error", "saturated", "underflowed", "not_finite"}} for a weight with two or
// more dimensions. The values come from the weight's master if there is one. For a format that cannot store the weight,
// the entry is {"error": "..."}. Uses memory for this weight. Throws InputError for faults of the checkpoint's files.
nlohmann::json quantization_errors(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& weight,
                                   std::span<const quant::Format> formats);

// Returns the "quantization_error" entries of inspected tensors as a table; empty without entries.
std::string quantization_error_table(const nlohmann::json& tensors);

}  // namespace tessera::run
