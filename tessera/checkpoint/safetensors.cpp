#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/base/text/printable.h"
#include "tessera/checkpoint/typed_json.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeader = 100'000'000;

struct TypeEntry {
  std::string_view name;
  std::int64_t bytes;
  std::optional<quant::DType> type;
};
constexpr std::array<TypeEntry, 8> kTypes{{{"F64", 8, quant::DType::fp64},
                                           {"F32", 4, quant::DType::fp32},
                                           {"F16", 2, std::nullopt},
                                           {"BF16", 2, quant::DType::bf16},
                                           {"I64", 8, quant::DType::i64},
                                           {"I32", 4, quant::DType::i32},
                                           {"U8", 1, quant::DType::u8},
                                           {"F8_E4M3", 1, std::nullopt}}};

const TypeEntry* find_type(std::string_view name) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeEntry& t) { return t.name == name; });
  return found == kTypes.end() ? nullptr : &*found;
}

std::array<unsigned char, kLengthBytes> encode_length(std::uint64_t length) {
  std::array<unsigned char, kLengthBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(length >> (8 * i));
  return bytes;
}

std::uint64_t decode_length(const std::array<unsigned char, kLengthBytes>& bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) length |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  return length;
}

// Returns the header's JSON. Sets `data_bytes` to the size of the data after the header.
std::string make_header(const std::vector<SafetensorsTensor>& tensors, std::int64_t& data_bytes) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  data_bytes = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto element = static_cast<std::int64_t>(quant::size_of(tensor.dtype));
    const std::int64_t end = data_bytes + checked_product(tensor.dims, element, tensor.name);
    if (header.contains(tensor.name)) throw Error("safetensors: the tensor '{}' is given twice", tensor.name);
    const std::string_view type = tensor.stored_as.empty() ? safetensors_name(tensor.dtype) : tensor.stored_as;
    header[tensor.name] = {{"dtype", type}, {"shape", tensor.dims}, {"data_offsets", {data_bytes, end}}};
    data_bytes = end;
  }
  std::string text = header.dump();
  text.resize(static_cast<std::size_t>(base::align_up(text.size(), kLengthBytes)), ' ');
  return text;
}

SafetensorsEntry parse_entry(const nlohmann::json& json, const std::string& where) {
  SafetensorsEntry entry;
  entry.dtype = string_member(json, "dtype", where);
  const TypeEntry* type = find_type(entry.dtype);
  if (type == nullptr)
    throw InputError("{}: dtype: expected F64, F32, F16, BF16, I64, I32, U8 or F8_E4M3, got '{}'", where,
                     base::excerpt(entry.dtype));
  entry.dims = integers(array_member(json, "shape", where), "shape", where);
  const auto offsets = integers(array_member(json, "data_offsets", where), "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    throw InputError("{}: data_offsets: expected [begin, end], got {}", where, shape_text(offsets));
  entry.offset = offsets[0];
  entry.bytes = offsets[1] - offsets[0];
  const std::int64_t expected = checked_product(entry.dims, type->bytes, where);
  if (entry.bytes != expected)
    throw InputError("{}: {} of shape {} has {} bytes, data_offsets give {}", where, entry.dtype,
                     shape_text(entry.dims), expected, entry.bytes);
  return entry;
}

// Checks that the entries cover the data exactly. The entries' offsets are still relative to the start of the data.
void check_tiling(const std::map<std::string, SafetensorsEntry>& entries, std::int64_t data_bytes,
                  const std::string& path) {
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> order;
  for (const auto& [name, entry] : entries) order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->offset, a.first->bytes) < std::pair(b.first->offset, b.first->bytes);
  });
  std::int64_t at = 0;
  for (const auto& [entry, name] : order) {
    if (entry->offset != at)
      throw InputError("{}: tensor '{}' starts at byte {} of the data, expected {} (no gap, no overlap)", path,
                       base::excerpt(*name), entry->offset, at);
    at += entry->bytes;
  }
  if (at != data_bytes)
    throw InputError("{}: the tensors take {} bytes, the file holds {} (truncated or foreign?)", path, at, data_bytes);
}

}  // namespace

std::string_view safetensors_name(quant::DType type) {
  for (const TypeEntry& entry : kTypes)
    if (entry.type == type) return entry.name;
  throw Error("safetensors: the format has no name for type {}", name_of(type));
}

std::optional<quant::DType> from_safetensors_name(std::string_view name) {
  const TypeEntry* entry = find_type(name);
  return entry == nullptr ? std::nullopt : entry->type;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                                     std::stop_token stop)
    : file_(path, std::move(stop)) {
  std::int64_t data_bytes = 0;
  const std::string header = make_header(tensors, data_bytes);
  const auto length = static_cast<std::int64_t>(header.size());
  if (length > kMaxHeader) throw Error("{}: a header of {} bytes is beyond the format's limit", path.string(), length);
  const auto prefix = encode_length(static_cast<std::uint64_t>(length));
  file_.write(prefix.data(), kLengthBytes);
  file_.write(header.data(), length);
  expected_ = kLengthBytes + length + data_bytes;
}

WrittenFile SafetensorsWriter::finish() {
  TESSERA_CHECK(file_.bytes() == expected_, "safetensors: {} bytes written, expected {}", file_.bytes(), expected_);
  return file_.finish();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string name = path.string();
  if (file_.size() < kLengthBytes)
    throw InputError("{}: expected a safetensors file, got {} bytes", name, file_.size());
  std::array<unsigned char, kLengthBytes> prefix{};
  file_.read(0, prefix.data(), kLengthBytes);
  const std::uint64_t length = decode_length(prefix);
  if (length > static_cast<std::uint64_t>(std::min(kMaxHeader, file_.size() - kLengthBytes)))
    throw InputError("{}: the header's length is {}, more than the file or the format allows (truncated or foreign?)",
                     name, length);
  std::string text(static_cast<std::size_t>(length), '\0');
  file_.read(kLengthBytes, text.data(), static_cast<std::int64_t>(length));
  const nlohmann::json header = base::parse_json(text, name + ": header");
  if (!header.is_object()) throw InputError("{}: header: expected an object", name);
  for (const auto& [key, value] : header.items())
    if (key != "__metadata__")
      entries_.emplace(key, parse_entry(value, fmt::format("{}: tensor '{}'", name, base::excerpt(key))));
  const std::int64_t data_start = kLengthBytes + static_cast<std::int64_t>(length);
  check_tiling(entries_, file_.size() - data_start, name);
  for (auto& [key, entry] : entries_) entry.offset += data_start;
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw InputError("{}: no tensor '{}'", file_.path().string(), name);
  return found->second;
}

}  // namespace tessera::checkpoint
