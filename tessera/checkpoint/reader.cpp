#include "tessera/checkpoint/reader.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/quant/elementwise.h"

namespace tessera::checkpoint {
namespace {

using layout::Box;

constexpr std::int64_t kLongRow = std::int64_t{64} << 10;  // bytes from which a row is read separately
constexpr std::int64_t kSparse = 16;  // rows are read separately if less than 1/16 of their span is requested
constexpr std::size_t kMaxOpenFiles = 64;

// A matrix in a file and its destination in memory. Strides and extents are in elements.
struct FileMatrix {
  const InputFile& file;
  std::int64_t offset;  // bytes from the start of the file
  std::int64_t stride;
  std::byte* target;
  std::int64_t target_stride;
  std::int64_t rows, cols;
  std::int64_t element;  // bytes of an element
};

void read_rows(const FileMatrix& m) {
  for (std::int64_t row = 0; row < m.rows; ++row)
    m.file.read(m.offset + row * m.stride * m.element, m.target + row * m.target_stride * m.element,
                m.cols * m.element);
}

// Reads whole spans of rows, including other columns, and copies the requested columns.
void read_spans(const FileMatrix& m) {
  const std::int64_t rows = std::clamp<std::int64_t>(kStagingBytes / (m.stride * m.element), 1, m.rows);
  base::Buffer staging(static_cast<std::size_t>(rows * m.stride * m.element));
  for (std::int64_t row = 0; row < m.rows; row += rows) {
    const std::int64_t count = std::min(rows, m.rows - row);
    m.file.read(m.offset + row * m.stride * m.element, staging.data(), ((count - 1) * m.stride + m.cols) * m.element);
    quant::copy_matrix(staging.data(), m.stride, m.target + row * m.target_stride * m.element, m.target_stride, count,
                       m.cols, static_cast<std::size_t>(m.element));
  }
}

void read_matrix(const FileMatrix& m) {
  const bool dense = m.rows == 1 || (m.stride == m.cols && m.target_stride == m.cols);
  if (dense) return m.file.read(m.offset, m.target, m.rows * m.cols * m.element);
  if (m.cols * m.element >= kLongRow || m.stride > kSparse * m.cols) return read_rows(m);
  read_spans(m);
}

bool inside(const Box& box, layout::Shape shape) {
  return box.row >= 0 && box.col >= 0 && box.rows >= 0 && box.cols >= 0 && box.row + box.rows <= shape.rows &&
         box.col + box.cols <= shape.cols;
}

void check_buffer(const LoadTensor& request, layout::Shape shape) {
  for (const layout::Piece& piece : request.local.pieces) {
    const Box& box = piece.box;
    TESSERA_CHECK(inside(box, shape), "{}: requested rows [{}, {}) cols [{}, {}), but the tensor is {} x {}",
                  request.name, box.row, box.row + box.rows, box.col, box.col + box.cols, shape.rows, shape.cols);
    const std::int64_t end = piece.offset + (box.rows - 1) * piece.stride + box.cols;
    TESSERA_CHECK(box.empty() || (piece.offset >= 0 && piece.stride >= box.cols && end <= request.local.size),
                  "{}: a piece ends at {}, but the local buffer has {} elements", request.name, end,
                  request.local.size);
  }
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(load_manifest(folder_)) {
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i)
    index_.emplace(std::pair(manifest_.tensors[i].kind, manifest_.tensors[i].name), i);
  for (const StoredFile& file : manifest_.files) {
    const InputFile opened(folder_ / file.name);
    if (opened.size() != file.bytes)
      throw InputError("{}: truncated or foreign: expected {} bytes, got {}", opened.path().string(), file.bytes,
                       opened.size());
  }
}

const StoredTensor* CheckpointReader::find(const std::string& name, const Kind& kind) const {
  const auto found = index_.find({kind, name});
  return found == index_.end() ? nullptr : &manifest_.tensors[found->second];
}

const StoredTensor& CheckpointReader::tensor(const std::string& name, const Kind& kind) const {
  const StoredTensor* found = find(name, kind);
  if (found == nullptr) throw InputError("{}: the {} of tensor '{}' is missing", folder_.string(), kind.name(), name);
  return *found;
}

bool CheckpointReader::has_planes(const std::string& name, const std::vector<Kind>& planes) const {
  const Kind *present = nullptr, *missing = nullptr;
  for (const Kind& plane : planes) (find(name, plane) != nullptr ? present : missing) = &plane;
  if (present != nullptr && missing != nullptr)
    throw InputError("{}: '{}' has {} but not {}: expected the whole state of its update rule, or no state",
                     folder_.string(), name, present->name(), missing->name());
  return present != nullptr;
}

bool CheckpointReader::has_state(const std::vector<Kind>& planes) const {
  bool any = false;
  for (const StoredTensor& tensor : manifest_.tensors)
    if (tensor.kind == Kind::weight && has_planes(tensor.name, planes)) any = true;
  return any;
}

bool CheckpointReader::has_state(const std::string& name, const std::vector<Kind>& planes) const {
  if (has_planes(name, planes)) return true;
  const bool has_other_state = std::ranges::any_of(
      manifest_.tensors, [&](const StoredTensor& tensor) { return tensor.name == name && tensor.kind.is_state(); });
  const auto has_plane = [&](const StoredTensor& tensor) {
    return std::ranges::find(planes, tensor.kind) != planes.end();
  };
  // A parameter without any state is then an error of read().
  return !has_other_state && std::ranges::any_of(manifest_.tensors, has_plane);
}

bool CheckpointReader::has_master() const {
  return std::any_of(manifest_.tensors.begin(), manifest_.tensors.end(),
                     [](const StoredTensor& tensor) { return tensor.kind == Kind::master; });
}

void CheckpointReader::verify(int part, int parts) const {
  TESSERA_CHECK(parts >= 1 && part >= 0 && part < parts, "verify: got part {} of {} parts", part, parts);
  for (auto i = static_cast<std::size_t>(part); i < manifest_.files.size(); i += static_cast<std::size_t>(parts)) {
    const StoredFile& file = manifest_.files[i];
    if (const std::string got = hash_file(folder_ / file.name); got != file.checksum)
      throw InputError("{}: damaged: expected xxh3_128 {}, got {}", (folder_ / file.name).string(), file.checksum, got);
  }
}

const SafetensorsFile& CheckpointReader::open(std::int64_t file) const {
  auto found = open_.find(file);
  if (found == open_.end()) {
    if (open_.size() >= kMaxOpenFiles) open_.clear();
    const StoredFile& stored = manifest_.files[static_cast<std::size_t>(file)];
    found = open_.emplace(file, std::make_unique<SafetensorsFile>(folder_ / stored.name)).first;
  }
  return *found->second;
}

void CheckpointReader::read_piece(const StoredTensor& tensor, const layout::Piece& target, std::byte* data) const {
  const auto element = static_cast<std::int64_t>(quant::size_of(tensor.dtype));
  for (const StoredPiece& piece : tensor.pieces) {
    const auto common = layout::intersect(piece.box, target.box);
    if (!common) continue;
    const SafetensorsFile& file = open(piece.file);
    const std::string key = piece_key(tensor.kind, tensor.name, piece.index);
    const SafetensorsEntry& entry = file.entry(key);
    if (from_safetensors_name(entry.dtype) != tensor.dtype || entry.dims != std::vector{piece.box.rows, piece.box.cols})
      throw InputError("{}: tensor '{}': the manifest has {} [{}, {}], the file has {} [{}]",
                       file.file().path().string(), key, name_of(tensor.dtype), piece.box.rows, piece.box.cols,
                       entry.dtype, fmt::join(entry.dims, ", "));
    const std::int64_t from = (common->row - piece.box.row) * piece.box.cols + (common->col - piece.box.col);
    const std::int64_t to =
        target.offset + (common->row - target.box.row) * target.stride + (common->col - target.box.col);
    read_matrix({.file = file.file(),
                 .offset = entry.offset + from * element,
                 .stride = piece.box.cols,
                 .target = data + to * element,
                 .target_stride = target.stride,
                 .rows = common->rows,
                 .cols = common->cols,
                 .element = element});
  }
}

namespace {

// Returns whether a state plane may be read in another type than the stored one.
bool is_converted(const StoredTensor& stored, const LoadTensor& request) {
  const auto is_short = [](quant::DType type) { return type == quant::DType::bf16 || type == quant::DType::fp32; };
  return request.kind.is_state() && is_short(stored.dtype) && is_short(request.dtype);
}

}  // namespace

void CheckpointReader::read_converted(const StoredTensor& stored, const LoadTensor& request) const {
  const std::size_t from = quant::size_of(stored.dtype), to = quant::size_of(request.dtype);
  base::Buffer own(static_cast<std::size_t>(request.local.size) * from);
  LoadTensor as_stored = request;
  as_stored.dtype = stored.dtype;
  as_stored.data = own.data();
  read(as_stored);
  for (const layout::Piece& piece : request.local.pieces)
    for (std::int64_t row = 0; row < piece.box.rows; ++row) {
      const auto first = static_cast<std::size_t>(piece.offset + row * piece.stride);
      quant::cast(own.data() + first * from, stored.dtype, static_cast<std::byte*>(request.data) + first * to,
                  request.dtype, piece.box.cols);
    }
}

void CheckpointReader::read(const LoadTensor& request) const {
  const StoredTensor& stored = tensor(request.name, request.kind);
  const std::string what = fmt::format("{}: {} '{}'", folder_.string(), request.kind.name(), request.name);
  if (stored.dims != request.dims)
    throw InputError("{}: expected shape [{}], got [{}]", what, fmt::join(request.dims, ", "),
                     fmt::join(stored.dims, ", "));
  if (stored.dtype != request.dtype && is_converted(stored, request)) return read_converted(stored, request);
  if (stored.dtype != request.dtype)
    throw InputError("{}: expected {}, got {}{}", what, name_of(request.dtype), name_of(stored.dtype),
                     request.kind == Kind::weight ? fmt::format(" (--dtype {} reads it)", name_of(stored.dtype)) : "");
  check_buffer(request, layout::matrix_shape(stored.dims));
  for (const layout::Piece& piece : request.local.pieces)
    read_piece(stored, piece, static_cast<std::byte*>(request.data));
}

std::string CheckpointReader::hash(const StoredTensor& tensor) const {
  const layout::Shape shape = layout::matrix_shape(tensor.dims);
  Hasher hasher;
  if (shape.elements() == 0) return hasher.hex();
  const auto element = static_cast<std::int64_t>(quant::size_of(tensor.dtype));
  const std::int64_t cols = std::min(shape.cols, kStagingBytes / element);
  const std::int64_t rows =
      cols < shape.cols ? 1 : std::clamp<std::int64_t>(kStagingBytes / (cols * element), 1, shape.rows);
  base::Buffer staging(static_cast<std::size_t>(rows * cols * element));
  for (std::int64_t row = 0; row < shape.rows; row += rows) {
    for (std::int64_t col = 0; col < shape.cols; col += cols) {
      const Box box{row, std::min(rows, shape.rows - row), col, std::min(cols, shape.cols - col)};
      read_piece(tensor, {.box = box, .offset = 0, .stride = box.cols}, staging.data());
      hasher.update(staging.data(), static_cast<std::size_t>(box.elements() * element));
    }
  }
  return hasher.hex();
}

}  // namespace tessera::checkpoint
