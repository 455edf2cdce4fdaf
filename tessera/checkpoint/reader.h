// Reads a checkpoint into any layout.
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

// A request for parts of one logical tensor.
struct LoadTensor {
  std::string name;
  Kind kind = Kind::weight;
  quant::DType dtype = quant::DType::fp32;
  std::vector<std::int64_t> dims;
  layout::LocalLayout local;  // the boxes to read, which may overlap; the rest of the buffer is not changed
  void* data = nullptr;       // the local buffer that `local` describes, in host memory
};

// An open checkpoint. Every fault of its files is an InputError with the file and the tensor. Used by one thread at a
// time; each rank opens its own reader.
class CheckpointReader {
 public:
  // Reads and checks the manifest, and checks that every file exists and has the right size. `folder` is the
  // checkpoint's own folder (see resolve_checkpoint).
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  std::int64_t step() const { return manifest_.step; }
  const nlohmann::json& state() const { return manifest_.state; }
  const Manifest& manifest() const { return manifest_; }

  const StoredTensor* find(const std::string& name, const Kind& kind) const;  // null if it is missing
  const StoredTensor& tensor(const std::string& name, const Kind& kind) const;
  // Returns whether the checkpoint has the state of an update rule with these planes. A checkpoint from `tessera
  // convert` has no state. A run that starts from such a checkpoint begins with state of zero and counts updates
  // from 1. Throws InputError if a weight has only some of the planes.
  bool has_state(const std::vector<Kind>& planes) const;
  // Returns whether a run that updates this parameter by a rule with these planes loads them from the checkpoint.
  // False: the parameter has the state of another rule, or no parameter has such planes. Throws InputError if the
  // parameter has only some of the planes.
  bool has_state(const std::string& name, const std::vector<Kind>& planes) const;
  // Returns whether the checkpoint has fp32 (or fp64) master weights besides the weights.
  bool has_master() const;

  // Reads each file i with i % parts == part completely and compares its checksum. Throws InputError if a checksum
  // differs.
  void verify(int part = 0, int parts = 1) const;

  // Reads the boxes of `request.local` into `request.data`. State in fp32 is rounded to a request in bf16, to nearest
  // even, and state in bf16 is widened to fp32. Throws InputError if the tensor is missing, has another shape or type,
  // or does not contain a box.
  void read(const LoadTensor& request) const;

  // Returns Hasher::hex of the tensor's logical bytes (row-major, little-endian). The hash does not depend on the
  // layout of the pieces.
  std::string hash(const StoredTensor& tensor) const;

 private:
  // Returns whether the parameter has all planes. Throws InputError if it has only some of them.
  bool has_planes(const std::string& name, const std::vector<Kind>& planes) const;

  const SafetensorsFile& open(std::int64_t file) const;
  // Reads a tensor of another type than the request's.
  void read_converted(const StoredTensor& stored, const LoadTensor& request) const;
  void read_piece(const StoredTensor& tensor, const layout::Piece& target, std::byte* data) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::pair<Kind, std::string>, std::size_t> index_;  // into manifest_.tensors
  mutable std::map<std::int64_t, std::unique_ptr<SafetensorsFile>> open_;
};

}  // namespace tessera::checkpoint
