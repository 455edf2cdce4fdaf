// Files of safetensors form: u64 (little-endian) length of the header, a JSON header, the tensors' bytes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/io.h"
#include "tessera/quant/dtype.h"

namespace tessera::checkpoint {

// The format's name of a type: "F32". And back: nothing for a type that quant::DType lacks (F16, F8_E4M3).
std::string_view safetensors_name(quant::DType type);
std::optional<quant::DType> from_safetensors_name(std::string_view name);

struct SafetensorsTensor {
  std::string name;
  quant::DType dtype = quant::DType::fp32;
  std::vector<std::int64_t> dims;
  std::string_view stored_as = {};  // a name of the format's for bytes of u8 that are other numbers: "F8_E4M3"
};

// Writes one file in a stream: the header at once, then the tensors' bytes (row-major, little-endian) in the given
// order.
class SafetensorsWriter {
 public:
  // Errors: a name twice, a header beyond the format's 100,000,000 bytes, what OutputFile throws.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                    std::stop_token stop = {});
  void write(const void* data, std::int64_t bytes) { file_.write(data, bytes); }
  // Errors: more or fewer bytes written than the tensors have.
  WrittenFile finish();

 private:
  OutputFile file_;
  std::int64_t expected_ = 0;  // bytes of the whole file
};

struct SafetensorsEntry {
  std::string dtype;  // F64, F32, F16, BF16, I64, I32, U8 or F8_E4M3
  std::vector<std::int64_t> dims;
  std::int64_t offset = 0;  // from the start of the file
  std::int64_t bytes = 0;
};

// A file whose header has been read and checked: known types, sizes that follow from the shapes, entries that tile the
// data without gap or overlap, no name twice. Every fault is an InputError with the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const InputFile& file() const { return file_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry& entry(const std::string& name) const;  // InputError if it is not there

 private:
  InputFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace tessera::checkpoint
