// Writing a checkpoint from the storage layouts of a running program.
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

// What one rank writes of one logical tensor.
struct LocalTensor {
  std::string name;
  Kind kind = Kind::weight;
  quant::DType dtype = quant::DType::fp32;
  std::vector<std::int64_t> dims;  // logical: no padding
  layout::LocalLayout local;       // the pieces that this rank writes; may be none
  const void* data = nullptr;      // the local buffer that `local` describes, host memory
};

struct CheckpointContents {
  std::int64_t step = 0;
  nlohmann::json state;  // free-form, rank 0's is written: the run's configuration, rate schedule, tokens seen
  std::vector<LocalTensor> tensors;
};

struct WriteOptions {
  // For tests that end a process in the middle: called on each rank after "created", "written", "gathered", "manifest"
  // and "committed".
  std::function<void(std::string_view stage, int rank)> on_stage;
};

// Collective over a group of all ranks that hold parts. Over all ranks the pieces cover every logical element exactly
// once; a rank may leave out tensors of which it writes nothing. The checkpoint appears at `folder` (.../step-00000020)
// complete or not at all, and replaces one that stands there. Any rank's failure (disk full, ...) is the same Error on
// every rank. Costs no copy of dense pieces; others pass through a small buffer.
void write_checkpoint(const std::filesystem::path& folder, const CheckpointContents& contents,
                      comm::Communicator& group, const WriteOptions& options = {});

// The parts of which write_checkpoint is made, for one process that converts.

// Writes the pieces into one file of `folder` and returns its manifest part. `data_of(i)` gives the local buffer of
// tensor i and may reuse its memory at the next call. No file is made if there is no piece.
struct PartFile {
  std::filesystem::path folder;
  std::string name;
  std::stop_token stop = {};
};
Manifest write_part(const PartFile& file, std::span<const LocalTensor> tensors,
                    const std::function<const void*(std::size_t)>& data_of);

// Merges and checks the parts, makes sure that every file is there, and writes the manifest. Errors: Error.
void finish_checkpoint(const std::filesystem::path& folder, const std::vector<Manifest>& parts);

}  // namespace tessera::checkpoint
