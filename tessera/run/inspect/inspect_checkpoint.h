// The output of `tessera inspect` for a checkpoint, as JSON and as text.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/quant/formats/format.h"

namespace tessera::run {

struct InspectOptions {
  bool hash = true;                               // hash every tensor, which reads the whole checkpoint
  bool verify = false;                            // also compare the files' checksums
  std::vector<quant::Format> quantization_error;  // formats for all weights (quantization_error.h)
};

// Returns
//   {"checkpoint", "step", "state", "kinds", "files": [{"name", "bytes", "xxh3_128"}],
//    "tensors": [{"name", "kind", "dtype", "shape", "elements", "pieces", "hash"}]}
// with the tensors ordered by name, then kind. "hash" is the xxh3_128 of the logical bytes; it does not depend on the
// layout that wrote the checkpoint.
//
// Weights of a checkpoint that a run wrote also have "wire_format": the number format in which the run stored and sent
// them. If the run's settings cannot be read, the key "wire_format_error" beside "state" has the reason. If requested,
// weights with two or more dimensions have "quantization_error"; one weight is in memory at a time.
//
// `path` may be a folder with checkpoints; then the latest is used. Throws InputError.
nlohmann::json inspect_checkpoint(const std::filesystem::path& path, const InspectOptions& options = {});

// Returns the same as a table.
std::string checkpoint_table(const nlohmann::json& inspected);

}  // namespace tessera::run
