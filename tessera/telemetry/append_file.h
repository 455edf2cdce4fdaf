// A file to which whole records are appended.
#pragma once
#include <filesystem>
#include <string_view>

namespace tessera::telemetry {

class AppendFile {
 public:
  enum class Open { create_new, create_or_append };
  // Throws Error if the file cannot be opened (create_new: also if it exists).
  AppendFile(std::filesystem::path path, Open how);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Writes `record` and returns when the operating system has all of it. On failure (for example a full disk),
  // truncates the file to the earlier records and throws an Error that names the file and the cause.
  void append(std::string_view record);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace tessera::telemetry
