#include "tessera/checkpoint/writer.h"

#include <algorithm>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/io.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/quant/elementwise.h"

namespace tessera::checkpoint {
namespace {

// Writes a piece row-major and dense. Rows that are not contiguous are packed, some at a time.
void write_piece(SafetensorsWriter& writer, const layout::Piece& piece, const void* data, std::size_t element) {
  const auto bytes = static_cast<std::int64_t>(element);
  const auto* source = static_cast<const std::byte*>(data) + piece.offset * bytes;
  const layout::Box& box = piece.box;
  if (piece.stride == box.cols || box.rows == 1) return writer.write(source, box.elements() * bytes);
  const std::int64_t rows = std::clamp<std::int64_t>(kStagingBytes / (box.cols * bytes), 1, box.rows);
  base::Buffer staging(static_cast<std::size_t>(rows * box.cols * bytes));
  for (std::int64_t row = 0; row < box.rows; row += rows) {
    const std::int64_t count = std::min(rows, box.rows - row);
    quant::copy_matrix(source + row * piece.stride * bytes, piece.stride, staging.data(), box.cols, count, box.cols,
                       element);
    writer.write(staging.data(), count * box.cols * bytes);
  }
}

std::vector<SafetensorsTensor> entries_of(std::span<const LocalTensor> tensors) {
  std::vector<SafetensorsTensor> entries;
  for (const LocalTensor& tensor : tensors) {
    std::int64_t index = 0;
    for (const layout::Piece& piece : tensor.local.pieces)
      entries.push_back({piece_key(tensor.kind, tensor.name, index++), tensor.dtype, {piece.box.rows, piece.box.cols}});
  }
  return entries;
}

void check_file(const std::filesystem::path& path, std::int64_t bytes) {
  std::error_code code;
  const auto found = std::filesystem::file_size(path, code);
  if (code || static_cast<std::int64_t>(found) != bytes)
    throw Error(
        "{}: another rank wrote {} bytes, but this rank got {}: is the folder on a file system that all ranks share?",
        path.string(), bytes, code ? code.message() : fmt::format("{} bytes", found));
}

}  // namespace

Manifest write_part(const PartFile& file, std::span<const LocalTensor> tensors,
                    const std::function<const void*(std::size_t)>& data_of) {
  Manifest part;
  std::unique_ptr<SafetensorsWriter> writer;
  const std::vector<SafetensorsTensor> entries = entries_of(tensors);
  if (!entries.empty()) writer = std::make_unique<SafetensorsWriter>(file.folder / file.name, entries, file.stop);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LocalTensor& tensor = tensors[i];
    StoredTensor& stored = part.tensors.emplace_back();
    stored = {tensor.name, tensor.kind, tensor.dtype, tensor.dims, {}};
    if (tensor.local.pieces.empty()) continue;
    const void* data = data_of(i);
    for (const layout::Piece& piece : tensor.local.pieces) {
      write_piece(*writer, piece, data, quant::size_of(tensor.dtype));
      stored.pieces.push_back({0, static_cast<std::int64_t>(stored.pieces.size()), piece.box});
    }
  }
  if (writer) {
    const WrittenFile written = writer->finish();
    part.files.push_back({file.name, written.bytes, written.checksum});
  }
  return part;
}

void finish_checkpoint(const std::filesystem::path& folder, const std::vector<Manifest>& parts) {
  const Manifest whole = merge(parts);
  try {
    validate(whole, "the ranks' parts");
  } catch (const InputError& error) {
    throw Error(error.what());  // an error of the program, not of the user
  }
  for (const StoredFile& file : whole.files) check_file(folder / file.name, file.bytes);
  save_manifest(folder, whole);
}

void write_checkpoint(const std::filesystem::path& folder, const CheckpointContents& contents,
                      comm::Communicator& group, const WriteOptions& options) {
  const std::string what = fmt::format("writing checkpoint {}", folder.string());
  const bool leads = group.rank() == 0;
  const auto stage = [&](std::string_view name) {
    if (options.on_stage) options.on_stage(name, group.rank());
  };
  std::unique_ptr<PartialFolder> aside;  // set on rank 0; removes the written files if an exception is thrown
  run_together(group, what, [&](const std::stop_token&) {
    if (leads) aside = std::make_unique<PartialFolder>(folder);
  });
  const std::filesystem::path path = broadcast_text(group, leads ? aside->path().string() : std::string());
  stage("created");

  Manifest part;
  run_together(group, what, [&](const std::stop_token& stop) {
    const PartFile file{.folder = path, .name = fmt::format("part-{:05}.safetensors", group.rank()), .stop = stop};
    part = write_part(file, contents.tensors, [&](std::size_t i) { return contents.tensors[i].data; });
    part.step = contents.step;
    if (leads) part.state = contents.state;
  });
  stage("written");

  const std::vector<std::string> texts = gather_text(group, to_text(part));
  stage("gathered");
  run_together(group, what, [&](const std::stop_token&) {
    if (!leads) return;
    std::vector<Manifest> parts;
    for (const std::string& text : texts) parts.push_back(parse_manifest(text, "a rank's part"));
    finish_checkpoint(path, parts);
  });
  stage("manifest");
  run_together(group, what, [&](const std::stop_token&) {
    if (leads) aside->commit();
  });
  stage("committed");
}

}  // namespace tessera::checkpoint
