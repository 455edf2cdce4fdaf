// A read-only memory-mapped file.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace tessera::data {

// Maps a whole regular file for reading; pages are loaded on access. If the file shrinks while it is mapped, the
// process receives SIGBUS (base/bus_error.h). Throws InputError, which names the file, if the file is missing, is not a
// regular file or cannot be read. Several threads may read at once.
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
