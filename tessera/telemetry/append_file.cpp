#include "tessera/telemetry/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::telemetry {

AppendFile::AppendFile(std::filesystem::path path, Open how) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (how == Open::create_new ? O_EXCL : 0);
  file_ = ::open(path_.c_str(), flags, 0666);
  if (file_ < 0) throw Error("{}: cannot be opened for writing: {}", path_.string(), std::strerror(errno));
}

AppendFile::~AppendFile() {
  ::close(file_);
}

void AppendFile::append(std::string_view record) {
  struct stat before {};
  bool failed = ::fstat(file_, &before) != 0;
  while (!failed && !record.empty()) {
    const ssize_t written = ::write(file_, record.data(), record.size());
    if (written < 0 && errno == EINTR) continue;
    failed = written <= 0;
    if (!failed) record.remove_prefix(static_cast<std::size_t>(written));
  }
  if (!failed) return;
  const int cause = errno;
  if (::ftruncate(file_, before.st_size) != 0)
    throw Error("{}: cannot be written: {}; its last record is incomplete", path_.string(), std::strerror(cause));
  throw Error("{}: cannot be written: {}", path_.string(), std::strerror(cause));
}

}  // namespace tessera::telemetry
