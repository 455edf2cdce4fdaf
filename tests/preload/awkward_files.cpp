// A library for LD_PRELOAD that imitates slow file systems, full disks and file systems without locks:
//   TESSERA_TEST_UNLINK_MS, _FSYNC_MS, _FLOCK_MS  delay of unlink (of a checkpoint's parts), of fsync, of flock
//   TESSERA_TEST_NO_LOCKS                         flock fails
//   TESSERA_TEST_FULL=WORD:BYTES                  the disk is full for paths with WORD after BYTES
//   TESSERA_TEST_READ_ONLY=FILE                   no folder can be created while FILE exists
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

// Sleeps for the milliseconds that the environment variable holds. Returns at once if it is not set.
void sleep_for(const char* variable) {
  if (const char* milliseconds = std::getenv(variable))
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(milliseconds)));
}

void take_time(const char* path) {
  if (std::strstr(path, "part-") != nullptr) sleep_for("TESSERA_TEST_UNLINK_MS");
}

// Returns the number of bytes that can still be written to the file, at most `count`.
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
  sleep_for("TESSERA_TEST_FSYNC_MS");
  return real<int (*)(int)>("fsync")(file);
}
int mkdir(const char* path, mode_t mode) noexcept {
  const char* file = std::getenv("TESSERA_TEST_READ_ONLY");
  if (file == nullptr || ::access(file, F_OK) != 0) return real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
  errno = EROFS;
  return -1;
}
int flock(int file, int operation) noexcept {
  sleep_for("TESSERA_TEST_FLOCK_MS");
  if (std::getenv("TESSERA_TEST_NO_LOCKS") == nullptr) return real<int (*)(int, int)>("flock")(file, operation);
  errno = ENOSYS;
  return -1;
}

}  // extern "C"
