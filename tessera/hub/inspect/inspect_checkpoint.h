// The output of `tessera inspect` for a checkpoint, as JSON and as text.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/quant/formats/format.h"

namespace tessera::hub {

struct InspectOptions {
  bool hash = true;     // whether to hash every tensor, which reads the whole checkpoint
  bool verify = false;  // whether to compare the files' checksums
  // Number formats whose error is computed for all weights (quantization_error.h).
  std::vector<quant::Format> quantization_error;
};

// Returns
//   {"checkpoint", "step", "state", "kinds",
//    "update_rules": [{"planes": {kind: type}, "parameters", "state_bytes"}], "files": [{"name", "bytes", "xxh3_128"}],
//    "tensors": [{"name", "kind", "dtype", "shape", "elements", "pieces", "hash"}]}
// "update_rules" has an entry for each combination of state planes that a parameter has.
// The tensors are ordered by name, then kind. "hash" is the xxh3_128 of the logical tensor's bytes. It does not depend
// on the layout of the run that wrote the checkpoint.
//
// If a run wrote the checkpoint, each weight also has "wire_format": the number format in which the run stored and sent
// the weight. If the run's settings cannot be read, the top-level key "wire_format_error" has the reason. If
// options.quantization_error is not empty, weights with two or more dimensions have "quantization_error". One weight is
// in memory at a time.
//
// `path` is a checkpoint, or a folder with checkpoints, whose latest checkpoint is used. Throws InputError.
nlohmann::json inspect_checkpoint(const std::filesystem::path& path, const InspectOptions& options = {});

// Returns the result of inspect_checkpoint as a text table.
std::string checkpoint_table(const nlohmann::json& inspected);

}  // namespace tessera::hub
