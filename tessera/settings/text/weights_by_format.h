// The number formats of a model's weights, as lines for the user and as JSON for summary.json. Pure.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/quant/dtype.h"
#include "tessera/shard/formats/format_table.h"

namespace tessera::settings {

// Returns a line for each use of the weights, with the share of each format and the weights without a number format:
//   wire: 3.1 % bf16, 96.9 % nvfp4 of the parameters; bf16: output.weight (default), norm.weight (vector)
// The backward wire has no line if its formats are those of the wire. If no weight has a number format, there is one
// line. `dtype` is the run's type.
std::vector<std::string> format_lines(const shard::FormatTable& table, quant::DType dtype);

// Returns {"wire": {FORMAT: elements, ...}, "wire_backward": {...}, "products": {...}}. Weights without a number format
// have the name of the run's type. The elements of each use add up to the parameters of the model.
nlohmann::ordered_json weights_by_format(const shard::FormatTable& table, quant::DType dtype);

}  // namespace tessera::settings
