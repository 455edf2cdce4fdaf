#include "tessera/checkpoint/io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t kChunk = std::int64_t{8} << 20;  // largest number of bytes of one system call

std::string reason(int code) {
  return std::generic_category().message(code);
}

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  const int code = errno;
  throw Error("cannot {} {}: {}", what, path.string(), reason(code));
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) FileDescriptor(std::exchange(value_, other.release()));
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) ::close(value_);
}

int FileDescriptor::release() {
  return std::exchange(value_, -1);
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file_.get() < 0) throw InputError("cannot open {}: {}", path_.string(), reason(errno));
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail("stat", path_);
  if (!S_ISREG(status.st_mode)) throw InputError("{}: expected a regular file", path_.string());
  size_ = status.st_size;
}

void InputFile::read(std::int64_t offset, void* data, std::int64_t bytes) const {
  auto* target = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(file_.get(), target, static_cast<std::size_t>(std::min(bytes, kChunk)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path_);
    if (got == 0)
      throw InputError("{}: truncated: expected {} more bytes at offset {}, got the end of the file", path_.string(),
                       bytes, offset);
    target += got;
    offset += got;
    bytes -= got;
  }
}

std::string read_text(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, text.data(), file.size());
  return text;
}

std::string hash_file(const std::filesystem::path& path) {
  const InputFile file(path);
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(file.size(), kChunk)));
  Hasher hasher;
  for (std::int64_t at = 0; at < file.size(); at += kChunk) {
    const std::int64_t bytes = std::min(kChunk, file.size() - at);
    file.read(at, chunk.data(), bytes);
    hasher.update(chunk.data(), static_cast<std::size_t>(bytes));
  }
  return hasher.hex();
}

OutputFile::OutputFile(std::filesystem::path path, std::stop_token stop)
    : path_(std::move(path)), stop_(std::move(stop)) {
  file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file_.get() < 0) fail("create", path_);
}

void OutputFile::write(const void* data, std::int64_t bytes) {
  const auto* source = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    if (stop_.stop_requested()) throw Error("stopped while writing {}", path_.string());
    const ssize_t done = ::write(file_.get(), source, static_cast<std::size_t>(std::min(bytes, kChunk)));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write", path_);
    hasher_.update(source, static_cast<std::size_t>(done));
    source += done;
    bytes -= done;
    bytes_ += done;
  }
}

WrittenFile OutputFile::finish() {
  if (::fsync(file_.get()) != 0) fail("sync", path_);
  if (::close(file_.release()) != 0) fail("close", path_);
  return {bytes_, hasher_.hex()};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), static_cast<std::int64_t>(text.size()));
  file.finish();
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0) fail("open the folder", folder);
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail("sync the folder", folder);
}

}  // namespace tessera::checkpoint
