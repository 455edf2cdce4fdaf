#include "tessera/comm/nccl/watchdog.h"

#include <pthread.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/rank_text.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPause{5};       // between two looks at the operations
constexpr milliseconds kAskEvery{200};  // for failures of other ranks
constexpr milliseconds kPeersAnswer{1000};
constexpr milliseconds kSlice{50};  // of a wait for the store, between two looks at failures
constexpr const char* kFailed = "failed";

std::string state_key(const NcclWatch& watch, int rank) {
  return fmt::format("state/{}/{}", watch.key(), rank);
}

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

NcclWatchdog::NcclWatchdog(std::shared_ptr<Store> store, int rank, milliseconds timeout, OnFailure on_failure)
    : store_(std::move(store)), rank_(rank), timeout_(timeout), on_failure_(std::move(on_failure)), thread_([this] {
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

std::string NcclWatchdog::await(Store& store, const std::string& key, NcclDeadline deadline) const {
  for (;;) {
    if (auto value = store.wait_for(key, kSlice)) return *value;
    if (auto error = failure()) std::rethrow_exception(error);
    if (steady_clock::now() > deadline)
      throw Error("time limit of {} ms passed: '{}' has not come", timeout_.count(), key);
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
    look();
    look_elsewhere();
  }
}

void NcclWatchdog::look() {
  for (const auto& watch : watches()) {
    const std::string problem = watch->look(timeout_);
    if (problem.empty()) continue;
    const std::string label = watch->label();
    fail_all(watch, fmt::format("{}: {}", label.empty() ? watch->group().name : label, problem));
  }
}

void NcclWatchdog::look_elsewhere() {
  if (store_gone_ || failure() != nullptr || steady_clock::now() - asked_ < kAskEvery) return;
  asked_ = steady_clock::now();
  try {
    if (const auto cause = store_->find(kFailed)) fail_all(nullptr, *cause);
  } catch (const std::exception&) {
    store_gone_ = true;  // its host has ended: what is under way has its time limit
  }
}

std::string NcclWatchdog::ask_peers(const NcclWatch& watch) {
  std::vector<std::pair<int, std::string>> answers;
  const auto end = steady_clock::now() + kPeersAnswer;
  for (const int peer : watch.group().members) {
    if (peer == rank_) continue;
    const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
    const auto state = store_->wait_for(state_key(watch, peer), std::max(left, milliseconds(0)));
    answers.emplace_back(peer, state.value_or("no answer"));
  }
  return answers_text(answers);
}

std::exception_ptr NcclWatchdog::fail_all(const std::shared_ptr<NcclWatch>& culprit, std::string text) {
  std::lock_guard failing(failing_);
  if (auto known = failure()) return known;
  const auto all = watches();
  try {
    for (const auto& watch : all) store_->set(state_key(*watch, rank_), watch->state());
    if (culprit != nullptr && !store_->find(kFailed)) store_->set(kFailed, text);
    if (culprit != nullptr && culprit->group().size() > 1) text += "; " + ask_peers(*culprit);
  } catch (const std::exception&) {
    text += "; the store is gone";
  }
  const auto error = make_error(text);
  {
    std::lock_guard lock(mutex_);
    failure_ = error;
  }
  // The culprit last: who sees its failure finds all groups failed.
  for (const auto& watch : all) {
    if (watch == culprit) continue;
    const std::string label = watch->label();
    watch->fail(make_error(fmt::format("{}: an earlier operation failed: {}",
                                       label.empty() ? watch->group().name : label, text_of(error))));
  }
  if (culprit != nullptr) culprit->fail(error);
  for (const auto& watch : all) watch->abort();
  if (on_failure_) std::thread(on_failure_, text_of(error)).detach();
  return error;
}

}  // namespace tessera::comm
