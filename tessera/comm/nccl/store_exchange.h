// Ranks exchange texts through the run's store.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tessera/comm/nccl/watchdog.h"
#include "tessera/rendezvous/store.h"

namespace tessera::comm {

// One thread.
class NcclStoreExchange {
 public:
  // `name`: in the store, the same on all `ranks`, among whom this is number `rank`; no two exchanges share it.
  NcclStoreExchange(std::shared_ptr<rendezvous::Store> store, std::shared_ptr<const NcclWatchdog> watchdog,
                    std::string name, int rank, int ranks);
  // Collective. Leaves `own` for the others and calls see(rank, what it has left) for each of them as it comes, from
  // the next rank on. Errors: the deadline, a failure meanwhile, what `see` throws.
  void exchange(const std::string& own, NcclDeadline deadline, const std::function<void(int, const std::string&)>& see);

 private:
  const std::shared_ptr<rendezvous::Store> store_;
  const std::shared_ptr<const NcclWatchdog> watchdog_;
  const std::string name_;
  const int rank_, ranks_;
  std::int64_t number_ = 0;  // of the next exchange
};

}  // namespace tessera::comm
