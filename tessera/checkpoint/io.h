// File access for checkpoints: exact reads at an offset, and writes that are hashed and synced to disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>

#include "tessera/checkpoint/hash.h"

namespace tessera::checkpoint {

// Size in bytes of the staging memory for rows that are not contiguous in memory or in the file. Groups of rows of
// about this size are read or written at a time.
inline constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;

// Move-only owner of a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept : value_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return value_; }
  int release();

 private:
  int value_ = -1;
};

// A regular file that is open for reading. Any thread may call read().
class InputFile {
 public:
  // Throws InputError if the file is missing, unreadable or not a regular file.
  explicit InputFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }
  // Reads exactly `bytes` bytes from `offset`. Throws InputError if the file is too short, Error if the disk fails.
  void read(std::int64_t offset, void* data, std::int64_t bytes) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t size_ = 0;
};

std::string read_text(const std::filesystem::path& path);
// Returns Hasher::hex of the file's bytes.
std::string hash_file(const std::filesystem::path& path);

struct WrittenFile {
  std::int64_t bytes = 0;
  std::string checksum;  // Hasher::hex of all bytes
};

// A new file. The bytes of the file are hashed while they are written. Errors contain the path and the system's reason
// (disk full, ...). write() throws Error after `stop` is requested.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path, std::stop_token stop = {});

  void write(const void* data, std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }
  // Syncs the file to disk and closes it. Without finish(), the file is incomplete.
  WrittenFile finish();

 private:
  std::filesystem::path path_;
  std::stop_token stop_;
  FileDescriptor file_;
  Hasher hasher_;
  std::int64_t bytes_ = 0;
};

void write_text(const std::filesystem::path& path, const std::string& text);
// Syncs a folder's entries (created, renamed or removed names) to disk.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
