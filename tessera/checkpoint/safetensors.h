// Files in safetensors format: u64 (little-endian) length of the header, a JSON header, the tensors' bytes.
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

// Convert between a type and its name in the format, such as "F32". The second function returns nullopt for a type that
// quant::DType lacks (F16, F8_E4M3).
std::string_view safetensors_name(quant::DType type);
std::optional<quant::DType> from_safetensors_name(std::string_view name);

struct SafetensorsTensor {
  std::string name;
  quant::DType dtype = quant::DType::fp32;
  std::vector<std::int64_t> dims;
  std::string_view stored_as = {};  // the format's type name if `u8` bytes represent other numbers, such as "F8_E4M3"
};

// Writes one file as a stream: the header in the constructor, then the tensors' bytes (row-major, little-endian) in the
// given order.
class SafetensorsWriter {
 public:
  // Throws Error for a repeated name or a header above the format's 100,000,000 bytes, and the errors of OutputFile.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                    std::stop_token stop = {});
  void write(const void* data, std::int64_t bytes) { file_.write(data, bytes); }
  // Throws Error if the number of written bytes is not the size of the tensors.
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

// A file whose header has been read and checked. The types are known, the sizes match the shapes, and no name is
// repeated. The entries cover the data without gap or overlap. Every fault is an InputError with the file and the
// tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const InputFile& file() const { return file_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry& entry(const std::string& name) const;  // throws InputError if the tensor is missing

 private:
  InputFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace tessera::checkpoint
