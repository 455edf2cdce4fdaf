// Helpers for tests of files and of invalid input: temporary folders and files, and error messages.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tessera/base/error.h"

namespace tessera::base {

// Returns the message of the InputError that `body` throws. Adds a test failure if `body` throws no error.
template <typename Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no InputError";
  return "";
}

// A temporary folder for one test. The destructor removes it.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tessera-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

class TempFile {
 public:
  explicit TempFile(const std::string& text) { std::ofstream(folder_ / "settings.json", std::ios::binary) << text; }
  std::string path() const { return (folder_ / "settings.json").string(); }

 private:
  TempFolder folder_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace tessera::base
