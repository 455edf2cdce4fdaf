// Writes a checkpoint from the storage layouts of a running program.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/comm/communicator.h"
#include "tessera/layout/layout.h"
#include "tessera/quant/dtype.h"

namespace tessera::checkpoint {

// The part of one logical tensor that one rank writes.
struct LocalTensor {
  std::string name;
  Kind kind = Kind::weight;
  quant::DType dtype = quant::DType::fp32;
  std::vector<std::int64_t> dims;  // logical: no padding
  layout::LocalLayout local;       // the pieces that this rank writes; may be empty
  const void* data = nullptr;      // the local buffer that `local` describes, in host memory
};

struct CheckpointContents {
  std::int64_t step = 0;
  // Any JSON, such as the run's configuration and number of tokens. Only rank 0's value is written.
  nlohmann::json state;
  std::vector<LocalTensor> tensors;
};

struct WriteOptions {
  // For tests that end a process during a write. Called on each rank after the stages "created", "written", "gathered",
  // "manifest" and "committed".
  std::function<void(std::string_view stage, int rank)> on_stage;
};

// Writes a checkpoint. Collective over a group of all ranks that hold parts. Together the pieces of all ranks cover
// every logical element exactly once. A rank may omit a tensor of which it writes no piece. The checkpoint appears at
// `folder` (.../step-00000020) either complete or not at all, and replaces an existing checkpoint. If a rank fails
// (disk full, ...), every rank throws the same Error. Dense pieces are written directly; other pieces are copied
// through a small buffer.
void write_checkpoint(const std::filesystem::path& folder, const CheckpointContents& contents,
                      comm::Communicator& group, const WriteOptions& options = {});

// The two functions below are the stages of write_checkpoint. A single process calls these functions to convert a
// checkpoint.

// Writes the pieces into one file and returns the part of the manifest that describes this file. `data_of(i)` returns
// the local buffer of tensor i and may reuse its memory at the next call. Does not create a file if there are no
// pieces.
struct PartFile {
  std::filesystem::path folder;
  std::string name;
  std::stop_token stop = {};
};
Manifest write_part(const PartFile& file, std::span<const LocalTensor> tensors,
                    const std::function<const void*(std::size_t)>& data_of);

// Merges and checks the parts, checks that every file exists, and writes the manifest. Throws Error.
void finish_checkpoint(const std::filesystem::path& folder, const std::vector<Manifest>& parts);

}  // namespace tessera::checkpoint
