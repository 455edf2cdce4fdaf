#include "tessera/rendezvous/boards/failure_exchange.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/process/running_clock.h"
#include "tessera/base/text/printable.h"
#include "tessera/rendezvous/rank_text.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAskEvery{200};  // time between two reads of other ranks' failures
constexpr milliseconds kPeersAnswer{1000};
constexpr milliseconds kTelling{2000};  // time limit of a whole report
constexpr const char* kFailed = "failed";
// The largest numbers of bytes of texts of other ranks. Longer texts are cut.
constexpr std::size_t kLongestCause = 16384, kLongestState = 4096;

std::string state_key(const std::string& group, int rank) {
  return fmt::format("state/{}/{}", group, rank);
}

// Returns a text of another rank as one line.
std::string line_of(std::string_view text, std::size_t longest) {
  return base::printable(text.substr(0, longest));
}

}  // namespace

FailureExchange::FailureExchange(std::shared_ptr<Store> store, int rank)
    : store_(std::move(store)), rank_(rank), thread_([this] { serve(); }) {
  pthread_setname_np(thread_.native_handle(), "failures");
}

FailureExchange::~FailureExchange() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::optional<std::string> FailureExchange::received() const {
  std::lock_guard lock(mutex_);
  return received_;
}

std::string FailureExchange::report(FailureReport failure) {
  std::packaged_task<std::string()> task([this, failure = std::move(failure)] { return exchange(failure); });
  std::future<std::string> said = task.get_future();
  {
    std::lock_guard lock(mutex_);
    pending_ = std::move(task);
  }
  changed_.notify_one();
  if (said.wait_for(kTelling) != std::future_status::ready) return "the store does not answer";
  return said.get();
}

void FailureExchange::serve() {
  for (bool listens = true;;) {
    std::optional<std::packaged_task<std::string()>> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kAskEvery, [this] { return closing_ || pending_; });
      if (closing_) return;
      task = std::exchange(pending_, std::nullopt);
    }
    if (task)
      (*task)();
    else
      listens = listens && listen();
  }
}

// Reads the cause that another rank has reported. Returns false if no later read is needed.
bool FailureExchange::listen() {
  try {
    const auto cause = store_->find(kFailed);
    if (!cause) return true;
    std::lock_guard lock(mutex_);
    received_ = line_of(*cause, kLongestCause);
  } catch (const std::exception&) {
    // The store's host has ended. Pending operations still have their time limits.
  }
  return false;
}

std::string FailureExchange::exchange(const FailureReport& report) {
  try {
    for (const auto& state : report.states) store_->set(state_key(state.group, rank_), state.text);
    if (!report.cause.empty() && !store_->find(kFailed)) store_->set(kFailed, report.cause);
    std::vector<std::pair<int, std::string>> answers;
    const auto end = base::RunningClock::now() + kPeersAnswer;
    for (const int peer : report.peers) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - base::RunningClock::now());
      const auto state = store_->wait_for(state_key(report.group, peer), std::max(left, milliseconds(0)));
      answers.emplace_back(peer, line_of(state.value_or("no answer"), kLongestState));
    }
    return answers_text(answers);
  } catch (const std::exception&) {
    return "the store cannot be reached";
  }
}

}  // namespace tessera::rendezvous
