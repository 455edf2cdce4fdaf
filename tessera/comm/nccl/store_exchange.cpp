#include "tessera/comm/nccl/store_exchange.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::comm {

NcclStoreExchange::NcclStoreExchange(std::shared_ptr<rendezvous::Store> store,
                                     std::shared_ptr<const NcclWatchdog> watchdog, std::string name, int rank,
                                     int ranks)
    : store_(std::move(store)), watchdog_(std::move(watchdog)), name_(std::move(name)), rank_(rank), ranks_(ranks) {}

void NcclStoreExchange::exchange(const std::string& own, NcclDeadline deadline,
                                 const std::function<void(int, const std::string&)>& see) {
  const std::int64_t number = number_++;
  const auto key = [this](std::int64_t exchange, int rank) { return fmt::format("{}/{}/{}", name_, exchange, rank); };
  store_->set(key(number, rank_), "+" + own);  // the store does not keep empty values
  for (int step = 1; step < ranks_; ++step) {
    const int peer = (rank_ + step) % ranks_;
    const std::string theirs = watchdog_->await(*store_, key(number, peer), deadline);
    if (!theirs.starts_with('+'))
      throw Error("store: '{}': expected a text that begins with '+', got {} other bytes", key(number, peer),
                  theirs.size());
    see(peer, theirs.substr(1));
  }
  if (number > 0) store_->erase(key(number - 1, rank_));  // all ranks have finished the previous exchange
}

}  // namespace tessera::comm
