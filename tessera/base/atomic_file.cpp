#include "tessera/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::base {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail_write(const fs::path& path, int cause) {
  throw Error("{}: cannot be written: {}", path.string(), std::strerror(cause));
}

// Writes all of `text` and syncs the file. Returns 0 or the errno of the failure.
int write_and_sync(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(file) == 0 ? 0 : errno;
}

void sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) fail_write(folder, errno);
  const int cause = ::fsync(file) == 0 || errno == EINVAL ? 0 : errno;  // EINVAL: the file system does not support it
  ::close(file);
  if (cause) fail_write(folder, cause);
}

}  // namespace

void write_file_atomically(const fs::path& path, std::string_view text) {
  const fs::path aside = path.string() + fmt::format(".partial.{}", ::getpid());
  const int file = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail_write(path, errno);
  int cause = write_and_sync(file, text);
  if (::close(file) != 0 && cause == 0) cause = errno;
  if (cause == 0 && ::rename(aside.c_str(), path.c_str()) != 0) cause = errno;
  if (cause != 0) {
    ::unlink(aside.c_str());
    fail_write(path, cause);
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

nlohmann::ordered_json finite_json(nlohmann::ordered_json value) {
  if (value.is_structured())
    for (auto& item : value) item = finite_json(std::move(item));
  if (!value.is_number_float()) return value;
  const auto number = value.get<double>();
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return value;
}

void write_json_atomically(const fs::path& path, const nlohmann::ordered_json& value) {
  // Replaces bytes of paths that are not UTF-8.
  constexpr auto replace = nlohmann::ordered_json::error_handler_t::replace;
  write_file_atomically(path, finite_json(value).dump(2, ' ', false, replace) + "\n");
}

}  // namespace tessera::base
