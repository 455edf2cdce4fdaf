#include "tessera/checkpoint/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"
#include "tessera/checkpoint/cover.h"
#include "tessera/checkpoint/io.h"
#include "tessera/checkpoint/typed_json.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "tessera-checkpoint";

// Text that the user gave (such as a path in `state`) may contain bytes that are not UTF-8. Such bytes become U+FFFD.
std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json to_json(const StoredTensor& tensor) {
  json pieces = json::array();
  for (const StoredPiece& piece : tensor.pieces) {
    const layout::Box& box = piece.box;
    pieces.push_back({piece.file, piece.index, box.row, box.rows, box.col, box.cols});
  }
  return {{"name", tensor.name},
          {"kind", tensor.kind.name()},
          {"dtype", name_of(tensor.dtype)},
          {"shape", tensor.dims},
          {"pieces", std::move(pieces)}};
}

// Writes one element per line, so that people can read and compare manifests.
template <typename Elements, typename ToJson>
std::string dump_lines(const Elements& elements, ToJson to) {
  std::string text = "[";
  for (const auto& element : elements) text += (text.size() > 1 ? ",\n  " : "\n  ") + dump(to(element));
  return text + "\n]";
}

StoredFile parse_file(const json& value, const std::string& where) {
  StoredFile file{string_member(value, "name", where), integer_member(value, "bytes", where),
                  string_member(value, "xxh3_128", where)};
  constexpr std::size_t kLongestName = 255;  // of Linux
  const bool plain = !file.name.empty() && file.name.size() <= kLongestName &&
                     file.name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && file.name != "." &&
                     file.name != ".." && base::printable(file.name) == file.name;
  if (!plain)
    throw InputError("{}: '{}' is not the name of a file in the checkpoint's folder", where, base::excerpt(file.name));
  const bool hex =
      file.checksum.size() == 32 && file.checksum.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hex)
    throw InputError("{}: xxh3_128: expected 32 hexadecimal digits, got '{}'", where, base::excerpt(file.checksum));
  return file;
}

StoredTensor parse_tensor(const json& value, std::size_t files, const std::string& file) {
  StoredTensor tensor;
  tensor.name = string_member(value, "name", file + ": tensors");
  const std::string where = file + ": tensor '" + base::excerpt(tensor.name) + "'";
  tensor.kind = parse_kind(string_member(value, "kind", where), where);
  const std::string dtype = string_member(value, "dtype", where);
  try {
    tensor.dtype = quant::parse_dtype(dtype);
  } catch (const InputError& error) {
    throw InputError("{}: {}", where, base::excerpt(error.what(), 300));
  }
  tensor.dims = integers(member(value, "shape", where), "shape", where);
  checked_product(tensor.dims, static_cast<std::int64_t>(quant::size_of(tensor.dtype)), where);
  for (const json& row : array_member(value, "pieces", where)) {
    const auto n = integers(row, "pieces", where);
    if (n.size() != 6)
      throw InputError("{}: pieces: expected [file, index, row, rows, col, cols], got {}", where, base::shown(row));
    if (static_cast<std::uint64_t>(n[0]) >= files)
      throw InputError("{}: pieces: got file index {}, expected below {}", where, n[0], files);
    tensor.pieces.push_back({n[0], n[1], {n[2], n[3], n[4], n[5]}});
  }
  return tensor;
}

}  // namespace

Kind parse_kind(std::string_view name, const std::string& where) {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  if (name.empty() || name.size() > Kind::kMaxSize || name.find_first_not_of(kCharacters) != std::string_view::npos)
    throw InputError("{}: kind: expected weight, master, or an optimizer's state such as exp_avg, got '{}'", where,
                     base::excerpt(name));
  return Kind(name);
}

std::string piece_key(const Kind& kind, std::string_view name, std::int64_t index) {
  return fmt::format("{}/{}/{}", kind.name(), name, index);
}

std::string to_text(const Manifest& manifest) {
  const auto file_json = [](const StoredFile& file) -> json {
    return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.checksum}};
  };
  return fmt::format("{{\n\"format\": \"{}\",\n\"version\": {},\n\"step\": {},\n\"state\": {},\n", kFormat,
                     kCheckpointVersion, manifest.step, dump(manifest.state)) +
         "\"files\": " + dump_lines(manifest.files, file_json) +
         ",\n\"tensors\": " + dump_lines(manifest.tensors, [](const StoredTensor& tensor) { return to_json(tensor); }) +
         "\n}\n";
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const json root = base::parse_json(text, where);
  if (const std::string format = string_member(root, "format", where); format != kFormat)
    throw InputError("{}: format: expected '{}', got '{}'", where, kFormat, base::excerpt(format));
  if (const auto version = integer_member(root, "version", where); version != kCheckpointVersion)
    throw InputError("{}: version: this program reads {}, got {}", where, kCheckpointVersion, version);
  Manifest manifest;
  manifest.step = integer_member(root, "step", where);
  manifest.state = member(root, "state", where);
  for (const json& file : array_member(root, "files", where))
    manifest.files.push_back(parse_file(file, where + ": files"));
  for (const json& tensor : array_member(root, "tensors", where))
    manifest.tensors.push_back(parse_tensor(tensor, manifest.files.size(), where));
  return manifest;
}

void validate(const Manifest& manifest, const std::string& where) {
  std::set<std::string> files;
  for (const StoredFile& file : manifest.files)
    if (!files.insert(file.name).second)
      throw InputError("{}: the file '{}' is listed twice", where, base::excerpt(file.name));
  std::set<std::pair<Kind, std::string>> seen;
  std::vector<layout::Box> boxes;
  for (const StoredTensor& tensor : manifest.tensors) {
    const std::string name = fmt::format("{}: {} '{}'", where, tensor.kind.name(), base::excerpt(tensor.name));
    if (!seen.emplace(tensor.kind, tensor.name).second) throw InputError("{}: listed twice", name);
    boxes.clear();
    std::set<std::pair<std::int64_t, std::int64_t>> places;
    for (const StoredPiece& piece : tensor.pieces) {
      boxes.push_back(piece.box);
      if (!places.emplace(piece.file, piece.index).second)
        throw InputError("{}: piece {} of file {} is listed twice", name, piece.index, piece.file);
    }
    if (const auto fault = cover_fault(layout::matrix_shape(tensor.dims), boxes))
      throw InputError("{}: {}", name, *fault);
  }
}

Manifest merge(const std::vector<Manifest>& parts) {
  Manifest whole;
  std::map<std::pair<Kind, std::string>, std::size_t> index;
  for (const Manifest& part : parts) {
    const auto first_file = static_cast<std::int64_t>(whole.files.size());
    whole.files.insert(whole.files.end(), part.files.begin(), part.files.end());
    for (const StoredTensor& tensor : part.tensors) {
      const auto [at, fresh] = index.try_emplace({tensor.kind, tensor.name}, whole.tensors.size());
      if (fresh) whole.tensors.push_back({tensor.name, tensor.kind, tensor.dtype, tensor.dims, {}});
      StoredTensor& target = whole.tensors[at->second];
      if (target.dtype != tensor.dtype || target.dims != tensor.dims)
        throw Error("{} '{}': one rank has {} [{}], another {} [{}]", tensor.kind.name(), tensor.name,
                    name_of(target.dtype), fmt::join(target.dims, ", "), name_of(tensor.dtype),
                    fmt::join(tensor.dims, ", "));
      for (StoredPiece piece : tensor.pieces) {
        piece.file += first_file;
        target.pieces.push_back(piece);
      }
    }
  }
  if (!parts.empty()) {
    whole.step = parts.front().step;
    whole.state = parts.front().state;
  }
  return whole;
}

Manifest load_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestFile;
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code))
    throw InputError("{}: not a checkpoint: {} is missing", folder.string(), kManifestFile);
  const std::string text = read_text(path);
  std::string expected = read_text(folder / kManifestChecksumFile);
  expected.erase(expected.find_last_not_of("\r\n ") + 1);
  if (const std::string got = hash_of(text.data(), text.size()); got != expected)
    throw InputError("{}: damaged: its xxh3_128 is {}, but {} contains '{}'", path.string(), got, kManifestChecksumFile,
                     base::excerpt(expected));
  Manifest manifest = parse_manifest(text, path.string());
  validate(manifest, path.string());
  return manifest;
}

void save_manifest(const std::filesystem::path& folder, const Manifest& manifest) {
  const std::string text = to_text(manifest);
  write_text(folder / kManifestFile, text);
  write_text(folder / kManifestChecksumFile, hash_of(text.data(), text.size()) + "\n");
}

}  // namespace tessera::checkpoint
