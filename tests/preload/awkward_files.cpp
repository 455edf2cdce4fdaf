// A library for LD_PRELOAD that makes file systems slow, full or without locks. TESSERA_TEST_UNLINK_MS is the time to
// remove a part of a checkpoint. TESSERA_TEST_FSYNC_MS is the time to write a file to the disk. With
// TESSERA_TEST_NO_LOCKS there are no locks. With TESSERA_TEST_FULL=WORD:BYTES the disk is full when a file with WORD in
// its path has BYTES bytes.
#include <dlfcn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

template <typename Call>
Call real(const char* name) {
  return reinterpret_cast<Call>(dlsym(RTLD_NEXT, name));
}

void take_time(const char* path) {
  const char* milliseconds = std::getenv("TESSERA_TEST_UNLINK_MS");
  if (milliseconds != nullptr && std::strstr(path, "part-") != nullptr)
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(milliseconds)));
}

// Returns the number of bytes that may still be written to the file, at most `count`.
std::size_t room_of(int file, std::size_t count) {
  const char* full = std::getenv("TESSERA_TEST_FULL");
  const char* bytes = full != nullptr ? std::strchr(full, ':') : nullptr;
  std::array<char, 4096> path{};
  struct stat status {};
  if (bytes == nullptr || ::fstat(file, &status) != 0 ||
      ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path.data(), path.size() - 1) < 0 ||
      std::strstr(path.data(), std::string(full, bytes).c_str()) == nullptr)
    return count;
  return std::min(count, static_cast<std::size_t>(std::max<off_t>(std::atoi(bytes + 1) - status.st_size, 0)));
}

}  // namespace

extern "C" {

int unlinkat(int folder, const char* path, int flags) {
  take_time(path);
  return real<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags);
}
int unlink(const char* path) noexcept {
  take_time(path);
  return real<int (*)(const char*)>("unlink")(path);
}
int remove(const char* path) noexcept {
  take_time(path);
  return real<int (*)(const char*)>("remove")(path);
}
ssize_t write(int file, const void* data, std::size_t count) {
  const std::size_t room = room_of(file, count);
  if (room > 0 || count == 0) return real<ssize_t (*)(int, const void*, std::size_t)>("write")(file, data, room);
  errno = ENOSPC;
  return -1;
}
int fsync(int file) {
  if (const char* milliseconds = std::getenv("TESSERA_TEST_FSYNC_MS"))
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(milliseconds)));
  return real<int (*)(int)>("fsync")(file);
}
int flock(int file, int operation) noexcept {
  if (std::getenv("TESSERA_TEST_NO_LOCKS") == nullptr) return real<int (*)(int, int)>("flock")(file, operation);
  errno = ENOSYS;
  return -1;
}

}  // extern "C"
