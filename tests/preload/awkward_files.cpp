// Preloaded (LD_PRELOAD), makes file systems as awkward as some are: TESSERA_TEST_UNLINK_MS, how long it takes to
// remove a part of a checkpoint; TESSERA_TEST_FSYNC_MS, how long it takes to bring a file to the disk;
// TESSERA_TEST_NO_LOCKS, there are no locks.
#include <dlfcn.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
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
