#include "tessera/run/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/launch/lost_ranks.h"
#include "tessera/rendezvous/host.h"
#include "tessera/rendezvous/launcher.h"

namespace tessera::run {
namespace {

// Sends the text of rank 0 to all ranks of the group.
std::string share_text(comm::Communicator& group, const std::string& text) {
  std::array<char, rendezvous::PeerWatch::kLongestAddress + 1> buffer{};
  std::copy_n(text.begin(), std::min(text.size(), buffer.size() - 1), buffer.begin());
  group.broadcast(buffer.data(), static_cast<std::int64_t>(buffer.size()), quant::DType::u8, 0).wait();
  return buffer.data();
}

// Returns whether all ranks of the group are on one host and in one network.
bool is_one_host(comm::Communicator& group) {
  const auto own = static_cast<std::int64_t>(std::hash<std::string>{}(rendezvous::network_identity()));
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&own, all.data(), comm::equal_counts(group.size(), 1), quant::DType::i64).synchronize();
  return std::ranges::count(all, own) == group.size();
}

void report_lost(const RunSetup& setup, const std::vector<int>& ranks) {
  try {
    launch::CommandPlace place{.program = program_invocation_name,
                               .launch = rendezvous::read_ranks(rendezvous::own_variables()),
                               .devices = static_cast<int>(base::cuda_device_count())};
    if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) place.visible = visible;
    const launch::LostRanks lost =
        launch::lost_ranks(setup.run, ranks, place, setup.checkpoint.value_or(std::filesystem::path()));
    fmt::print(stderr, "{}", launch::lost_ranks_text(lost));
    std::fflush(stderr);
    launch::write_lost_ranks(lost, setup.run->out);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera: no command to continue without the lost ranks: {}\n", error.what());
  }
}

}  // namespace

RankWatch::~RankWatch() {
  leave();
}

void RankWatch::start(comm::Communicator& group, const RunSetup& setup, const StopRequested& stop_requested) {
  if (group.size() == 1) return;
  auto watch = std::make_unique<rendezvous::PeerWatch>(
      rendezvous::PeerWatch::Options{.rank = group.rank(),
                                     .ranks = group.size(),
                                     .is_one_host = is_one_host(group),
                                     .share = [&](const std::string& text) { return share_text(group, text); },
                                     .lost = [&setup](const std::vector<int>& ranks) { report_lost(setup, ranks); },
                                     .stop_requested = stop_requested});
  const std::lock_guard lock(mutex_);
  watch_ = std::move(watch);
}

void RankWatch::leave(std::string_view error) {
  const std::lock_guard lock(mutex_);
  has_failed_device_ = has_failed_device_ || is_device_failure(error);
  if (watch_ != nullptr && !has_failed_device_) watch_->leave();
}

bool is_device_failure(std::string_view message) {
  const auto contains = [&](std::string_view word) { return message.find(word) != std::string_view::npos; };
  const bool is_cuda = contains("(cudaError") || contains("CUDA error");
  return is_cuda && !contains("cudaErrorMemoryAllocation") && !contains("out of memory");
}

}  // namespace tessera::run
