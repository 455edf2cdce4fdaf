// manifest.json: the list of a checkpoint's tensors and files. docs/checkpoint.md defines the format.
#pragma once
#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/layout/box.h"
#include "tessera/quant/dtype.h"

namespace tessera::checkpoint {

inline constexpr std::int64_t kCheckpointVersion = 1;
inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kManifestChecksumFile = "manifest.xxh3";

// The role of a stored tensor for its parameter: the weight, its master, or a state plane of the optimizer with the
// name of the plane (ops/optimizer/update_rule.h), such as "exp_avg".
class Kind {
 public:
  static constexpr std::size_t kMaxSize = 32;
  static const Kind weight, master;  // NOLINT(readability-identifier-naming)
  // Throws Error for a name of more than kMaxSize bytes.
  constexpr explicit Kind(std::string_view name) : size_(name.size()) {
    if (size_ > kMaxSize) throw Error("the kind of a tensor has {} bytes, expected at most {}", size_, kMaxSize);
    std::ranges::copy(name, name_.begin());
  }
  constexpr std::string_view name() const { return {name_.data(), size_}; }
  bool is_state() const { return *this != weight && *this != master; }
  // Orders weight, master, and then the state by name.
  std::strong_ordering operator<=>(const Kind& other) const {
    return std::pair(order(), name()) <=> std::pair(other.order(), other.name());
  }
  bool operator==(const Kind&) const = default;

 private:
  int order() const { return *this == weight ? 0 : *this == master ? 1 : 2; }

  std::array<char, kMaxSize> name_{};
  std::size_t size_;
};
inline constexpr Kind Kind::weight{"weight"}, Kind::master{"master"};
// Throws InputError unless the name has 1 to Kind::kMaxSize lower-case letters, digits and underscores.
Kind parse_kind(std::string_view name, const std::string& where);

struct StoredFile {
  std::string name;  // relative to the checkpoint's folder
  std::int64_t bytes = 0;
  std::string checksum;  // Hasher::hex
};

// A box of the logical matrix. The box is stored row-major and dense as the tensor piece_key(...) of a file.
struct StoredPiece {
  std::int64_t file = 0;   // index into Manifest::files
  std::int64_t index = 0;  // number of this piece among the tensor's pieces in the file
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

// Returns a piece's name in its file, such as "weight/layers.0.mlp.down.weight/0".
std::string piece_key(const Kind& kind, std::string_view name, std::int64_t index);

// Convert between a manifest and the text of manifest.json. parse_manifest checks types, ranges and names, but not
// whether the pieces fit.
std::string to_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& where);

// Throws InputError if a tensor or file is listed twice, or if pieces do not cover a tensor exactly once.
void validate(const Manifest& manifest, const std::string& where);

// Merges the manifests of the ranks into one manifest, which takes `step` and `state` from the first. Throws Error if
// two ranks describe a tensor differently. The caller validates the result.
Manifest merge(const std::vector<Manifest>& parts);

// Reads a checkpoint folder's manifest.json, compares it with its checksum and validates it. Throws InputError.
Manifest load_manifest(const std::filesystem::path& folder);
// Writes manifest.json and its checksum, and syncs both to disk.
void save_manifest(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace tessera::checkpoint
