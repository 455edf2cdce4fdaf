#include "tessera/rendezvous/limited_store.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/process/running_clock.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using Question = std::function<void(std::shared_ptr<Store>&)>;

// The queue between the callers and the thread. If a call does not return, only the thread still owns this object.
struct Line {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Question> questions;
  bool closing = false;
  std::string lost;  // the reason why the connection is lost; empty: the connection works
};

void serve(const std::shared_ptr<Line>& line) {
  std::shared_ptr<Store> store;
  for (;;) {
    Question question;
    {
      std::unique_lock lock(line->mutex);
      line->changed.wait(lock, [&] { return line->closing || !line->questions.empty(); });
      if (line->closing) return;
      question = std::move(line->questions.front());
      line->questions.pop_front();
    }
    question(store);
  }
}

// Calls in the queue may outlive their callers, so each call owns the data that it needs.
class LimitedStore final : public Store {
 public:
  LimitedStore(const StoreLimits& limits, std::string where)
      : limits_(limits),
        where_(std::move(where)),
        line_(std::make_shared<Line>()),
        thread_([line = line_] { serve(line); }) {}
  ~LimitedStore() override {
    bool is_stuck = false;
    {
      std::lock_guard lock(line_->mutex);
      line_->closing = true;
      is_stuck = !line_->lost.empty();
    }
    line_->changed.notify_one();
    if (is_stuck)
      thread_.detach();
    else
      thread_.join();
  }

  void open(std::function<std::shared_ptr<Store>()> make) {
    call_limited("connect", "", limits_.connect,
                 [make = std::move(make)](std::shared_ptr<Store>& store) { store = make(); });
  }

  void set(const std::string& key, const std::string& value) override {
    call_limited("set", key, limits_.answer, [key, value](std::shared_ptr<Store>& store) { store->set(key, value); });
  }
  std::optional<std::string> find(const std::string& key) override {
    return call_limited("get", key, limits_.answer, [key](std::shared_ptr<Store>& store) { return store->find(key); });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return call_limited("add", key, limits_.answer,
                        [key, amount](std::shared_ptr<Store>& store) { return store->add(key, amount); });
  }
  void erase(const std::string& key) override {
    call_limited("erase", key, limits_.answer, [key](std::shared_ptr<Store>& store) { store->erase(key); });
  }
  std::shared_ptr<Store> connect() override {
    auto store =
        call_limited("connect", "", limits_.connect, [](std::shared_ptr<Store>& own) { return own->connect(); });
    return make_limited_store([store = std::move(store)] { return store; }, limits_, where_);
  }

 private:
  template <typename Call, typename Answer = std::invoke_result_t<Call, std::shared_ptr<Store>&>>
  Answer call_limited(std::string_view what, const std::string& key, milliseconds limit, Call call) {
    auto task = std::make_shared<std::packaged_task<Answer(std::shared_ptr<Store>&)>>(std::move(call));
    std::future<Answer> answer = task->get_future();
    put([task = std::move(task)](std::shared_ptr<Store>& store) { (*task)(store); });
    const bool is_answered = base::wait_until(
        base::RunningClock::now() + limit,
        [&](base::RunningClock::duration part) { return answer.wait_for(part) == std::future_status::ready; });
    if (!is_answered) throw_no_answer(what, key, limit);
    try {
      return answer.get();
    } catch (const std::future_error&) {  // the call was dropped because another call timed out
      std::lock_guard lock(line_->mutex);
      throw Error("{}", line_->lost);
    }
  }

  void put(Question question) {
    {
      std::lock_guard lock(line_->mutex);
      if (!line_->lost.empty()) throw Error("{}", line_->lost);
      line_->questions.push_back(std::move(question));
    }
    line_->changed.notify_one();
  }

  [[noreturn]] void throw_no_answer(std::string_view what, const std::string& key, milliseconds limit) {
    const std::string name = key.empty() ? std::string(what) : fmt::format("{} '{}'", what, key);
    std::lock_guard lock(line_->mutex);
    if (line_->lost.empty())
      line_->lost = fmt::format("store: {}: {}: no answer within {} ms", where_, name, limit.count());
    line_->closing = true;
    line_->questions.clear();
    throw Error("{}", line_->lost);
  }

  const StoreLimits limits_;
  const std::string where_;
  const std::shared_ptr<Line> line_;
  std::thread thread_;  // the last member: it starts when the others are initialised
};

}  // namespace

std::shared_ptr<Store> make_limited_store(std::function<std::shared_ptr<Store>()> open, const StoreLimits& limits,
                                          const std::string& where) {
  auto store = std::make_shared<LimitedStore>(limits, where);
  store->open(std::move(open));
  return store;
}

}  // namespace tessera::rendezvous
