// What `tessera inspect` shows: a checkpoint as JSON and as text.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::run {

struct InspectOptions {
  bool hash = true;     // of every tensor: reads the whole checkpoint
  bool verify = false;  // compare the files' checksums too
};

// {"checkpoint", "step", "state", "kinds", "files": [{"name", "bytes", "xxh3_128"}],
//  "tensors": [{"name", "kind", "dtype", "shape", "elements", "pieces", "hash"}]} with the tensors ordered by name,
//  then
// kind. "hash" is the xxh3_128 of the logical bytes, the same for every layout the checkpoint was written from. `path`
// may be a folder with checkpoints: the latest. Errors: InputError.
nlohmann::json inspect_checkpoint(const std::filesystem::path& path, const InspectOptions& options = {});

// The same as a table for people.
std::string checkpoint_table(const nlohmann::json& inspected);

}  // namespace tessera::run
