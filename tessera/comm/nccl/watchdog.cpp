#include "tessera/comm/nccl/watchdog.h"

#include <pthread.h>

#include <algorithm>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/rendezvous/states/rank_state.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{5};   // pause between two checks of the operations
constexpr milliseconds kSlice{50};  // time of one wait for the store, between two checks for failures

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

std::exception_ptr make_error(const std::string& text) {
  return std::make_exception_ptr(Error("{}", text));
}

}  // namespace

NcclWatchdog::NcclWatchdog(std::shared_ptr<rendezvous::Store> store, int rank, base::Device device,
                           milliseconds timeout, OnFailure on_failure)
    : rank_(rank),
      timeout_(timeout),
      on_failure_(std::move(on_failure)),
      failures_(std::move(store), rank),
      thread_([this, device] {
        base::set_device(device);  // otherwise the new thread would use GPU 0 and keep a context on it
        serve();
      }) {
  pthread_setname_np(thread_.native_handle(), "nccl watchdog");
}

NcclWatchdog::~NcclWatchdog() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void NcclWatchdog::add(const std::shared_ptr<NcclWatch>& watch) {
  std::exception_ptr failure;
  {
    std::lock_guard lock(mutex_);
    watches_.push_back(watch);
    failure = failure_;
  }
  changed_.notify_one();
  if (failure == nullptr) return;
  watch->fail(failure);
  watch->abort();
}

void NcclWatchdog::remove(const std::shared_ptr<NcclWatch>& watch) {
  std::lock_guard lock(mutex_);
  watches_.remove(watch);
}

std::exception_ptr NcclWatchdog::report(const std::shared_ptr<NcclWatch>& watch, const std::string& label,
                                        const std::string& problem) {
  return fail_all(watch, label + ": " + problem);
}

std::string NcclWatchdog::await(rendezvous::Store& store, const std::string& key, NcclDeadline deadline) const {
  for (;;) {
    if (auto value = store.wait_for(key, kSlice)) return *value;
    if (auto error = failure()) std::rethrow_exception(error);
    if (base::RunningClock::now() > deadline)
      throw Error("time limit of {} ms passed: the store has no value for '{}'", timeout_.count(), key);
  }
}

std::exception_ptr NcclWatchdog::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<std::shared_ptr<NcclWatch>> NcclWatchdog::watches() const {
  std::lock_guard lock(mutex_);
  return {watches_.begin(), watches_.end()};
}

void NcclWatchdog::serve() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || (failure_ == nullptr && !watches_.empty()); });
      changed_.wait_for(lock, kPause, [this] { return closing_; });
      if (closing_) return;
    }
    poll();
    if (const auto cause = failures_.received()) fail_all(nullptr, *cause);
  }
}

void NcclWatchdog::poll() {
  const auto all = watches();
  const bool beside_graph = std::ranges::any_of(all, [](const auto& watch) { return watch->runs_graph(); });
  for (const auto& watch : all) {
    const std::string problem = watch->poll(timeout_, beside_graph);
    if (problem.empty()) continue;
    const std::string label = watch->label();
    fail_all(watch, fmt::format("{}: {}", label.empty() ? watch->group().name : label, problem));
  }
}

// Reports the failure to the other ranks. Returns the statuses of the peers as the end of a sentence.
std::string NcclWatchdog::report_to_peers(const std::vector<std::shared_ptr<NcclWatch>>& all,
                                          const NcclWatch* failed_watch, std::string cause) {
  rendezvous::FailureReport report;
  for (const auto& watch : all) report.states.push_back({watch->key(), watch->state()});
  if (failed_watch != nullptr) {
    report.cause = std::move(cause);
    report.group = failed_watch->key();
    for (const int peer : failed_watch->group().members)
      if (peer != rank_) report.peers.push_back(peer);
  }
  const std::string answers = failures_.report(std::move(report));
  return answers.empty() ? answers : "; " + answers;
}

std::exception_ptr NcclWatchdog::fail_all(const std::shared_ptr<NcclWatch>& failed_watch, std::string text) {
  std::lock_guard failing(failing_);
  if (auto known = failure()) return known;
  const auto all = watches();
  std::string pending;  // the peers do not say for which ranks a rank waits
  for (const auto& watch : all)
    if (pending.empty()) pending = watch->label();
  rendezvous::note_operation(rank_, pending, !pending.empty());
  text += report_to_peers(all, failed_watch.get(), text);
  const auto error = make_error(text);
  {
    std::lock_guard lock(mutex_);
    failure_ = error;
  }
  // Fails `failed_watch` last, so that a caller that receives its error finds all groups failed.
  for (const auto& watch : all) {
    if (watch == failed_watch) continue;
    const std::string label = watch->label();
    watch->fail(make_error(fmt::format("{}: an earlier operation failed: {}",
                                       label.empty() ? watch->group().name : label, text_of(error))));
  }
  if (failed_watch != nullptr) failed_watch->fail(error);
  for (const auto& watch : all) watch->abort();
  if (on_failure_) std::thread(on_failure_, text_of(error)).detach();
  return error;
}

}  // namespace tessera::comm
