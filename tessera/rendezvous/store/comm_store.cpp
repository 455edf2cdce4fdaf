#include <c10/util/Logging.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"
#include "tessera/rendezvous/socket.h"
#include "tessera/rendezvous/tcp_store.h"

namespace tessera::rendezvous {
namespace {

using Client = c10::intrusive_ptr<c10d::Store>;

constexpr const char* kConnected = "connected";      // the number of ranks that have opened their last connection
constexpr std::chrono::milliseconds kReadPause{10};  // time between two reads of this number

// Calls `call` and converts libtorch's errors, which have many lines with a stack trace, to one-line errors.
template <typename Call>
auto reach(const char* what, Call call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw Error("store: {}: {}", what, error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error("store: {}: {}", what, error.what());
  }
}

// libtorch's store. Its calls wait for the host without a limit and ignore the time limit of the client. Connecting may
// also take longer than the limit.
class TcpStore final : public Store {
 public:
  explicit TcpStore(Client client) : client_(std::move(client)) {}

  void set(const std::string& key, const std::string& value) override {
    if (value.size() > kLongestValue)
      throw Error("store: set '{}': expected at most {} bytes, got {}", key, kLongestValue, value.size());
    reach("set", [&] { client_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }
  std::optional<std::string> find(const std::string& key) override {
    return reach("get", [&]() -> std::optional<std::string> {
      if (!client_->check({key})) return std::nullopt;
      const auto value = client_->get(key);
      if (value.size() > kLongestValue)
        throw Error("expected at most {} bytes in '{}', got {}", kLongestValue, key, value.size());
      return std::string(value.begin(), value.end());
    });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return reach("add", [&] { return client_->add(key, amount); });
  }
  void erase(const std::string& key) override {
    reach("erase", [&] { client_->deleteKey(key); });
  }
  std::shared_ptr<Store> connect() override {
    return reach("connect", [&] { return std::make_shared<TcpStore>(client_->clone()); });
  }

 private:
  const Client client_;
};

// Called in the thread of a connection. libtorch's thread that serves the store inherits the mask. Otherwise SIGPIPE
// would end this process if a client closes its connection before it reads the answer.
void block_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

bool is_host(const Launch& launch) {
  return launch.rank == 0 && !launch.hosts_store;
}

std::string place_of(const Launch& launch) {
  return fmt::format("{}:{}, rank {}", launch.address, launch.port, launch.rank);
}

// Returns an empty socket on failure, with the cause in errno.
Socket listen_on_port(const Launch& launch, int pending) {
  Socket socket = bind_socket(launch.is_one_host ? Interfaces::loopback : Interfaces::all, launch.port);
  return socket && ::listen(socket.get(), pending) == 0 ? std::move(socket) : Socket();
}

// Returns a socket that listens on the store's port.
Socket take_port(const Launch& launch) {
  Socket socket = listen_on_port(launch, SOMAXCONN);
  if (socket) return socket;
  if (errno == EADDRINUSE)
    throw InputError(
        "store: {}: the port is in use, perhaps by another run: set MASTER_PORT to a free port, the same on all ranks "
        "of this run",
        place_of(launch));
  throw Error("store: {}: cannot listen on the port: {}", place_of(launch), std::strerror(errno));
}

}  // namespace

void disable_store_log() {
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  c10::initLogging();
}

StorePort::StorePort(Launch& launch) {
  if (is_host(launch) && launch.socket < 0) launch.socket = take_port(launch).release();
  // Without this option on the connections of an inherited socket, the closed port cannot be kept.
  if (const int on = 1; is_host(launch)) ::setsockopt(launch.socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  launch_ = launch;
}

void StorePort::close_when_all_connected(const std::shared_ptr<Store>& store) {
  if (launch_.hosts_store) return;
  store->add(kConnected, 1);
  if (launch_.rank > 0) return;
  thread_ = std::jthread([this, store](const std::stop_token& stop) {
    try {
      await_ranks_and_close(*store, stop);
    } catch (const std::exception&) {
      // The store cannot be reached, so nothing can connect to it.
    }
  });
}

void StorePort::await_ranks_and_close(Store& store, const std::stop_token& stop) {
  for (; store.add(kConnected, 0) < launch_.size; std::this_thread::sleep_for(kReadPause))
    if (stop.stop_requested()) return;
  // libtorch's thread keeps the number of the descriptor. It gets a socket that never has connections.
  const Socket idle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!idle || ::dup3(idle.get(), launch_.socket, O_CLOEXEC) < 0) return;
  kept_ = listen_on_port(launch_, 0);
}

std::shared_ptr<Store> make_tcp_store(const Launch& launch, const StoreLimits& limits) {
  const std::string where = place_of(launch);
  std::optional<int> listener;
  if (is_host(launch)) listener = launch.socket >= 0 ? launch.socket : take_port(launch).release();
  const auto open = [launch, limit = limits.connect, where, listener] {
    block_sigpipe();
    return reach(where.c_str(), [&] {
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(launch.port);
      options.isServer = listener.has_value();
      options.masterListenFd = listener;
      options.waitWorkers = false;
      options.timeout = limit;
      return std::make_shared<TcpStore>(c10::make_intrusive<c10d::TCPStore>(launch.address, options));
    });
  };
  try {
    return make_limited_store(open, limits, where);
  } catch (const Error& error) {
    if (listener) throw;
    throw Error("{} (expected rank 0 of this run there: check that rank 0 runs, MASTER_ADDR and MASTER_PORT)",
                error.what());
  }
}

}  // namespace tessera::rendezvous
