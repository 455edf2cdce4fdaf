// What `tessera inspect` shows: a checkpoint as JSON and as text.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/quant/formats/format.h"

namespace tessera::run {

struct InspectOptions {
  bool hash = true;                               // of every tensor: reads the whole checkpoint
  bool verify = false;                            // compare the files' checksums too
  std::vector<quant::Format> quantization_error;  // of all weights in these formats (quantization_error.h)
};

// {"checkpoint", "step", "state", "kinds", "files": [{"name", "bytes", "xxh3_128"}],
//  "tensors": [{"name", "kind", "dtype", "shape", "elements", "pieces", "hash"}]} with the tensors ordered by name,
//  then
// kind. "hash" is the xxh3_128 of the logical bytes, the same for every layout the checkpoint was written from.
//
// Weights of a checkpoint that a run wrote also have "wire_format": the number format in which the run's settings
// stored and sent them. Where those settings cannot be read, "wire_format_error" beside "state" says why. If it is
// asked for, weights with two or more dimensions have "quantization_error"; one weight is in memory at a time.
//
// `path` may be a folder with checkpoints: the latest. Errors: InputError.
nlohmann::json inspect_checkpoint(const std::filesystem::path& path, const InspectOptions& options = {});

// The same as a table for people.
std::string checkpoint_table(const nlohmann::json& inspected);

}  // namespace tessera::run
