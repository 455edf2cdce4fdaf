#include "tessera/run/rank_watch.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/rendezvous/host.h"
#include "tessera/rendezvous/stop_requests.h"
#include "tessera/run/lost_report.h"

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

}  // namespace

RankWatch::~RankWatch() {
  leave();
}

void RankWatch::start(comm::Communicator& group, const RunSetup& setup, const StopRequested& stop_requested) {
  if (group.size() == 1) {
    const std::lock_guard lock(mutex_);
    table_.emplace();
    return;
  }
  auto hangs = std::make_unique<HangWatch>(setup, group.rank(), group.size());
  HangWatch& seen = *hangs;
  auto watch = std::make_unique<rendezvous::PeerWatch>(rendezvous::PeerWatch::Options{
      .rank = group.rank(),
      .ranks = group.size(),
      .is_one_host = is_one_host(group),
      .share = [&](const std::string& text) { return share_text(group, text); },
      .lost = [&setup](const std::vector<int>& ranks) { report_lost(setup, ranks); },
      .stop_requested = stop_requested,
      .line = [&seen] { return seen.line(); },
      .received = [&seen](int rank, const std::string& line) { seen.received(rank, line); },
      .tick = [&seen] { seen.tick(); }});
  const std::lock_guard lock(mutex_);
  hangs_ = std::move(hangs);
  watch_ = std::move(watch);
}

void RankWatch::leave(std::string_view error) {
  const std::lock_guard lock(mutex_);
  has_failed_device_ = has_failed_device_ || is_device_failure(error);
  if (hangs_ != nullptr && !error.empty() && !has_left_) {
    // When a launcher ends the ranks, its signal is not a request to stop the run.
    if (error.find("time limit of") != std::string_view::npos)
      for (const int signal : rendezvous::kStopSignals) std::signal(signal, SIG_IGN);
    is_hang_reported_ = hangs_->report(error);
  }
  has_left_ = true;
  if (watch_ != nullptr && !has_failed_device_) watch_->leave();
}

bool RankWatch::is_hang_reported() {
  const std::lock_guard lock(mutex_);
  return is_hang_reported_;
}

bool is_device_failure(std::string_view message) {
  const auto contains = [&](std::string_view word) { return message.find(word) != std::string_view::npos; };
  const bool is_cuda = contains("(cudaError") || contains("CUDA error");
  return is_cuda && !contains("cudaErrorMemoryAllocation") && !contains("out of memory");
}

}  // namespace tessera::run
