// A file in memory, read only.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace tessera::data {

// Maps a whole regular file for reading; pages are loaded as they are touched. Where the file shrinks while it
// is mapped the process gets SIGBUS (base/bus_error.h). InputError, naming the file, when it is missing, not a regular
// file or cannot be read. Reading from several threads is fine.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;  // page-aligned; null for an empty file
  std::size_t size_ = 0;
};

}  // namespace tessera::data
