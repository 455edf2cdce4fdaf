#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"
#include "tessera/rendezvous/tcp_store.h"

namespace tessera::rendezvous {
namespace {

using Client = c10::intrusive_ptr<c10d::Store>;

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
    reach("set", [&] { client_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }
  std::optional<std::string> find(const std::string& key) override {
    return reach("get", [&]() -> std::optional<std::string> {
      if (!client_->check({key})) return std::nullopt;
      const auto value = client_->get(key);
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

}  // namespace

void disable_store_log() {
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  c10::initLogging();
}

std::shared_ptr<Store> make_tcp_store(const Launch& launch, const StoreLimits& limits) {
  const std::string where = fmt::format("{}:{}, rank {}", launch.address, launch.port, launch.rank);
  const auto open = [launch, limit = limits.connect, where] {
    return reach(where.c_str(), [&] {
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(launch.port);
      options.isServer = launch.rank == 0 && !launch.hosts_store;
      if (options.isServer && launch.socket >= 0) options.masterListenFd = launch.socket;
      options.waitWorkers = false;
      options.timeout = limit;
      return std::make_shared<TcpStore>(c10::make_intrusive<c10d::TCPStore>(launch.address, options));
    });
  };
  return make_limited_store(open, limits, where);
}

}  // namespace tessera::rendezvous
