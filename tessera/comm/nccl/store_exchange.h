// Exchanges texts between ranks through the run's store.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tessera/comm/nccl/watchdog.h"
#include "tessera/rendezvous/store.h"

namespace tessera::comm {

// For use by one thread.
class NcclStoreExchange {
 public:
  // `name` is the prefix of the keys in the store. All `ranks` ranks of an exchange pass the same `name`, which no
  // other exchange uses. `rank` is this rank's number among these ranks.
  NcclStoreExchange(std::shared_ptr<rendezvous::Store> store, std::shared_ptr<const NcclWatchdog> watchdog,
                    std::string name, int rank, int ranks);
  // Collective. Writes `own` to the store and calls see(rank, text) for each other rank, starting with the next rank,
  // as soon as that rank's text has arrived. Throws Error if the deadline passes, or if an NCCL operation fails
  // meanwhile. Also throws the errors of `see`.
  void exchange(const std::string& own, NcclDeadline deadline, const std::function<void(int, const std::string&)>& see);

 private:
  const std::shared_ptr<rendezvous::Store> store_;
  const std::shared_ptr<const NcclWatchdog> watchdog_;
  const std::string name_;
  const int rank_, ranks_;
  std::int64_t number_ = 0;  // number of the next exchange
};

}  // namespace tessera::comm
