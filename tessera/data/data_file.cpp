#include "tessera/data/data_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: the call does not block on a named pipe.
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw InputError("{}: cannot be opened: {}", path_.string(), std::strerror(errno));
  struct stat status {};
  const int stat_error = ::fstat(file, &status) == 0 ? 0 : errno;
  void* data = nullptr;
  int map_error = 0;
  if (stat_error == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    data = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) map_error = errno;
  }
  ::close(file);
  if (stat_error != 0 || map_error != 0)
    throw InputError("{}: cannot be read: {}", path_.string(), std::strerror(stat_error + map_error));
  if (!S_ISREG(status.st_mode)) throw InputError("{}: is not a regular file, expected a data file", path_.string());
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<std::size_t>(status.st_size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace tessera::data
