// A file that only grows, whole records at a time.
#pragma once
#include <filesystem>
#include <string_view>

namespace tessera::run {

class AppendFile {
 public:
  enum class Open { create_new, create_or_append };
  // Error when it cannot be opened (create_new: when it exists).
  AppendFile(std::filesystem::path path, Open how);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Hands all of `record` to the system before it returns. On failure (disk full) the file is cut back to the records
  // before this one, and an Error names file and cause.
  void append(std::string_view record);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace tessera::run
