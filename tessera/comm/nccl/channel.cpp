#include "tessera/comm/nccl/channel.h"

#include <thread>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kChannelShutdownLimit{10};
constexpr int kFewChannels = 4;

void rest(steady_clock::time_point begin) {
  if (steady_clock::now() - begin < std::chrono::microseconds(200))
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

NcclChannel::NcclChannel(std::shared_ptr<const NcclLibrary> library, base::Device device, const GroupIdentity& group,
                         const ncclUniqueId& id, Traffic traffic, NcclDeadline deadline)
    : library_(std::move(library)), device_(device), name_(group.name) {
  const base::DeviceGuard guard(device);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name_.c_str();
  if (traffic == Traffic::small) config.maxCTAs = kFewChannels;  // each channel has its own buffers
  constexpr const char* init = "ncclCommInitRankConfig";
  try {
    const ncclResult_t result = library_->comm_init_rank_config(&comm_, group.size(), id, group.rank, &config);
    check(result, init);
    await_ready(init, deadline);
  } catch (...) {
    abort();
    throw;
  }
}

NcclChannel::~NcclChannel() {
  try {
    {
      std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return;
      const base::DeviceGuard guard(device_);
      check(library_->comm_finalize(comm_), "ncclCommFinalize");
    }
    await_ready("ncclCommFinalize", base::RunningClock::now() + kChannelShutdownLimit);
    std::lock_guard lock(mutex_);
    if (comm_ != nullptr) check(library_->comm_destroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
  } catch (const std::exception&) {
    abort();
  }
}

void NcclChannel::call(const char* what, const Body& body, NcclDeadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw Error("the communicator was aborted");
    check(library_->group_start(), "ncclGroupStart");
    const ncclResult_t inside = body(*library_, comm_);
    const ncclResult_t end = library_->group_end();
    check(inside, what);
    check(end, what);
  }
  await_ready(what, deadline);
}

void NcclChannel::abort() {
  ncclComm_t comm = nullptr;
  {
    std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  if (comm != nullptr) library_->comm_abort(comm);  // this call may take a long time
}

std::string NcclChannel::async_error() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = library_->comm_get_async_error(comm_, &state);
  if (result != ncclSuccess) state = result;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  return fmt::format("{}: {}", library_->get_error_string(state), library_->get_last_error(comm_));
}

void NcclChannel::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* detail = library_->get_last_error(comm_);
  throw Error("{}: {}{}{}", what, library_->get_error_string(result), detail != nullptr && *detail != '\0' ? ": " : "",
              detail == nullptr ? "" : detail);
}

void NcclChannel::await_ready(const char* what, NcclDeadline deadline) {
  const auto begin = steady_clock::now();
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (comm_ == nullptr) throw Error("the communicator was aborted");
      ncclResult_t state = ncclSuccess;
      check(library_->comm_get_async_error(comm_, &state), what);
      check(state, what);
      if (state == ncclSuccess) return;
    }
    if (base::RunningClock::now() > deadline) throw Error("time limit passed in {}", what);
    rest(begin);
  }
}

}  // namespace tessera::comm
