// manifest.json: what a checkpoint holds and where. docs/checkpoint.md defines the format.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/box.h"
#include "tessera/quant/dtype.h"

namespace tessera::checkpoint {

inline constexpr std::int64_t kCheckpointVersion = 1;
inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kManifestChecksumFile = "manifest.xxh3";

// What a stored tensor is to its parameter.
enum class Kind { weight, master, exp_avg, exp_avg_sq };
std::string_view name_of(Kind kind);                               // "exp_avg_sq"
Kind parse_kind(std::string_view name, const std::string& where);  // InputError on an unknown name

struct StoredFile {
  std::string name;  // in the checkpoint's folder
  std::int64_t bytes = 0;
  std::string checksum;  // Hasher::hex
};

// A box of the logical matrix, stored row-major and dense as the tensor piece_key(...) of a file.
struct StoredPiece {
  std::int64_t file = 0;   // index into Manifest::files
  std::int64_t index = 0;  // which piece of this tensor in that file
  layout::Box box;
};

struct StoredTensor {
  std::string name;
  Kind kind = Kind::weight;
  quant::DType dtype = quant::DType::fp32;
  std::vector<std::int64_t> dims;
  std::vector<StoredPiece> pieces;
};

struct Manifest {
  std::int64_t step = 0;
  nlohmann::json state;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;
};

// "weight/layers.0.mlp.down.weight/0": the name of a piece inside its file.
std::string piece_key(Kind kind, std::string_view name, std::int64_t index);

// The text of manifest.json, and back. parse_manifest checks types, ranges and names, not that the pieces fit.
std::string to_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& where);

// Errors (InputError): a tensor or file listed twice, pieces that do not cover a tensor exactly once.
void validate(const Manifest& manifest, const std::string& where);

// One manifest of what each rank wrote; step and state are the first one's. Errors (Error): two ranks that describe one
// tensor differently. Validation is the caller's.
Manifest merge(const std::vector<Manifest>& parts);

// Reads manifest.json of a checkpoint folder, compares it with its checksum and validates it. Errors: InputError.
Manifest load_manifest(const std::filesystem::path& folder);
// Writes manifest.json and its checksum, both brought to the disk.
void save_manifest(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace tessera::checkpoint
