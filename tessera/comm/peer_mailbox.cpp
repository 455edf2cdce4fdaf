#include "tessera/comm/peer_mailbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <random>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"

namespace tessera::comm {

struct PeerMailbox::Queue {
  alignas(64) std::atomic<std::uint64_t> posted;
  alignas(64) std::atomic<std::uint64_t> taken;
  std::array<Destination, kPending> destinations;
};

struct PeerMailbox::Contents {
  alignas(64) std::byte queues[1];  // an array of one Queue for each sender
};

namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the atomics are shared between processes");

[[noreturn]] void fail_system(const std::string& name, const char* what) {
  throw Error("mailbox {}: {}: {}", name, what, std::strerror(errno));
}

struct File {
  int descriptor;
  ~File() { close(descriptor); }
};

void* map(const std::string& name, int descriptor, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) fail_system(name, "mmap");
  return memory;
}

}  // namespace

std::size_t PeerMailbox::bytes_for(int senders) {
  return offsetof(Contents, queues) + static_cast<std::size_t>(senders) * sizeof(Queue);
}

std::unique_ptr<PeerMailbox> PeerMailbox::create(const std::string& prefix, int senders) {
  std::random_device random;
  const std::string name = fmt::format("/{}-{}-{:08x}{:08x}", prefix, getpid(), random(), random());
  const std::size_t bytes = bytes_for(senders);
  const File file{shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600)};
  if (file.descriptor < 0) fail_system(name, "shm_open");
  // Allocates all pages now. If a page were missing later, the access would raise SIGBUS.
  if (const int error = posix_fallocate(file.descriptor, 0, static_cast<off_t>(bytes)); error != 0) {
    shm_unlink(name.c_str());
    errno = error;
    fail_system(name, "posix_fallocate");
  }
  auto* contents = new (map(name, file.descriptor, bytes)) Contents;
  std::unique_ptr<PeerMailbox> mailbox(new PeerMailbox(name, contents, senders, true));
  for (int sender = 0; sender < senders; ++sender) new (&mailbox->queue(sender)) Queue{};
  return mailbox;
}

std::unique_ptr<PeerMailbox> PeerMailbox::open(const std::string& name, int senders) {
  // The name comes from another process.
  if (name.size() > NAME_MAX || !name.starts_with('/') ||
      name.find_first_of(std::string_view("/\0", 2), 1) != name.npos)
    throw Error("mailbox '{}': expected the name of shared memory",
                base::printable(std::string_view(name).substr(0, NAME_MAX)));
  const std::size_t bytes = bytes_for(senders);
  const File file{shm_open(name.c_str(), O_RDWR, 0)};
  if (file.descriptor < 0) fail_system(name, "shm_open");
  struct stat status {};
  if (fstat(file.descriptor, &status) != 0) fail_system(name, "fstat");
  if (static_cast<std::size_t>(status.st_size) != bytes)
    throw Error("mailbox {}: expected {} bytes for {} senders, got {}", name, bytes, senders, status.st_size);
  auto* contents = static_cast<Contents*>(map(name, file.descriptor, bytes));
  return std::unique_ptr<PeerMailbox>(new PeerMailbox(name, contents, senders, false));
}

PeerMailbox::PeerMailbox(std::string name, Contents* contents, int senders, bool owned)
    : name_(std::move(name)), contents_(contents), senders_(senders), linked_(owned) {}

PeerMailbox::~PeerMailbox() {
  unlink();
  munmap(contents_, bytes_for(senders_));
}

void PeerMailbox::unlink() {
  if (std::exchange(linked_, false)) shm_unlink(name_.c_str());
}

PeerMailbox::Queue& PeerMailbox::queue(int sender) {
  TESSERA_CHECK(sender >= 0 && sender < senders_, "mailbox {}: sender {} of {}", name_, sender, senders_);
  return reinterpret_cast<Queue*>(contents_->queues)[sender];
}

bool PeerMailbox::try_post(int sender, const Destination& destination) {
  Queue& queue = this->queue(sender);
  const std::uint64_t number = queue.posted.load(std::memory_order_relaxed);
  if (number - queue.taken.load(std::memory_order_acquire) >= kPending) return false;
  queue.destinations[number % kPending] = destination;
  queue.posted.store(number + 1, std::memory_order_release);
  return true;
}

std::optional<Destination> PeerMailbox::try_take(int sender) {
  Queue& queue = this->queue(sender);
  const std::uint64_t number = queue.taken.load(std::memory_order_relaxed);
  if (queue.posted.load(std::memory_order_acquire) == number) return std::nullopt;
  const Destination destination = queue.destinations[number % kPending];
  queue.taken.store(number + 1, std::memory_order_release);
  return destination;
}

}  // namespace tessera::comm
