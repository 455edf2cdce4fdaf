// What number formats lose of a checkpoint's weights: `tessera inspect --quantization-error`.
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

// The difference between a matrix and the values that stand for it in a format, both rounded to bf16. Elements that are
// not finite are left out of all but their own count.
struct QuantizationError {
  double relative_rms = 0;       // sqrt(sum of squared differences / sum of squared elements); 0 if all are 0
  double max_error = 0;          // the greatest difference, relative to the greatest magnitude
  std::int64_t saturated = 0;    // beyond the greatest number of their tile, which stands for them
  std::int64_t underflowed = 0;  // not 0, but stored as 0
  std::int64_t not_finite = 0;   // infinities and NaNs
};

// Quantizes by the definition of quant/formats/quantize.h, as one matrix. Takes 10 bytes an element beside `values`.
// Errors: as quant::check_extent; bf16.
QuantizationError quantization_error(std::span<const quant::bfloat16> values, quant::Extent matrix,
                                     quant::Format format);

// One word of the command line: "all" or a format's name. Errors (InputError): another word; bf16.
std::vector<quant::Format> parse_error_formats(const std::vector<std::string>& words);

// {FORMAT: {"relative_rms", "max_error", "saturated", "underflowed", "not_finite"}} for a weight with two or more
// dimensions, from its master if there is one; {FORMAT: {"error": "..."}} where a format cannot store it. Memory for
// this weight. Errors: InputError of the checkpoint's files.
nlohmann::json quantization_errors(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& weight,
                                   std::span<const quant::Format> formats);

// The entries "quantization_error" of inspected tensors as a table for people; empty where there are none.
std::string quantization_error_table(const nlohmann::json& tensors);

}  // namespace tessera::run
