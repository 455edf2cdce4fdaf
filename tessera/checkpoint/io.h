// Files as checkpoints need them: exact reads at an offset, writes that are hashed and reach the disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>

#include "tessera/checkpoint/hash.h"

namespace tessera::checkpoint {

// Memory for rows that lie apart in a file, read or written some at a time.
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

// A regular file opened for reading. read() may be called from any thread.
class InputFile {
 public:
  // Errors (InputError): missing, unreadable, not a regular file.
  explicit InputFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }
  // Exactly `bytes` bytes from `offset`. Errors: InputError when the file ends before, Error when the disk fails.
  void read(std::int64_t offset, void* data, std::int64_t bytes) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t size_ = 0;
};

std::string read_text(const std::filesystem::path& path);
// Hash of the whole file.
std::string hash_file(const std::filesystem::path& path);

struct WrittenFile {
  std::int64_t bytes = 0;
  std::string checksum;  // Hasher::hex of all bytes
};

// A new file. What is written is hashed on the way. Errors name the path and the system's reason (disk full, ...); also
// thrown: "stopped" once `stop` is requested.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path, std::stop_token stop = {});

  void write(const void* data, std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }
  // Brings the file to the disk and closes it. Without it the file is of no use.
  WrittenFile finish();

 private:
  std::filesystem::path path_;
  std::stop_token stop_;
  FileDescriptor file_;
  Hasher hasher_;
  std::int64_t bytes_ = 0;
};

void write_text(const std::filesystem::path& path, const std::string& text);
// Brings a folder's entries (names made, renamed, removed) to the disk.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
