// Reading a checkpoint into any layout.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/layout/layout.h"
#include "tessera/quant/dtype.h"

namespace tessera::checkpoint {

// What to read of one logical tensor, and where to.
struct LoadTensor {
  std::string name;
  Kind kind = Kind::weight;
  quant::DType dtype = quant::DType::fp32;
  std::vector<std::int64_t> dims;
  layout::LocalLayout local;  // any boxes, overlapping ones too; the rest of the buffer is left alone
  void* data = nullptr;       // the local buffer that `local` describes, host memory
};

// One checkpoint, opened. Every fault of the files is an InputError that names file and tensor. One thread at a time;
// ranks open their own.
class CheckpointReader {
 public:
  // Reads the manifest and checks it, that every file is there and that it has the right size. `folder` is the
  // checkpoint's own (see resolve_checkpoint).
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  std::int64_t step() const { return manifest_.step; }
  const nlohmann::json& state() const { return manifest_.state; }
  const Manifest& manifest() const { return manifest_; }

  const StoredTensor* find(const std::string& name, Kind kind) const;  // null if it is not there
  const StoredTensor& tensor(const std::string& name, Kind kind) const;
  // Whether it holds the optimizer's moments. One made by `tessera convert` does not: a run that starts from it starts
  // with moments of zero and counts steps from 1. Errors: some weights have both moments and others not.
  bool has_moments() const;
  // The same for fp32 (or fp64) master weights beside the weights.
  bool has_master() const;

  // Reads the files i with i % parts == part in full and compares their checksums: over all parts, everything once.
  void verify(int part = 0, int parts = 1) const;

  // Fills exactly the boxes of `request.local`. Errors: no such tensor, another shape or type, a box outside it.
  void read(const LoadTensor& request) const;

  // Hasher::hex of the tensor's logical bytes (row-major, little-endian): the same for every layout it was stored in.
  std::string hash(const StoredTensor& tensor) const;

 private:
  const SafetensorsFile& open(std::int64_t file) const;
  void read_piece(const StoredTensor& tensor, const layout::Piece& target, std::byte* data) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::pair<Kind, std::string>, std::size_t> index_;  // into manifest_.tensors
  mutable std::map<std::int64_t, std::unique_ptr<SafetensorsFile>> open_;
};

}  // namespace tessera::checkpoint
