#include "tessera/rendezvous/run_identity.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/process/running_clock.h"
#include "tessera/base/text/printable.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using Clock = base::RunningClock;

constexpr std::size_t kIdentityDigits = 32;
constexpr std::size_t kLongestShown = 300;  // largest number of bytes of a value of the store in a message

constexpr milliseconds kPollPause{5};
// A rank that finds another run waits for this time, because another program may have set the key.
constexpr milliseconds kDoubt{1000};

// The keys that all runs on one store have in common.
constexpr const char* kRun = "tessera run";
std::string place_key(int rank) {
  return fmt::format("tessera place {}", rank);
}
std::string given_key(int rank) {
  return fmt::format("tessera identity for {}", rank);
}

std::string where(const Launch& launch) {
  return fmt::format("store: {}:{}, rank {}", launch.address, launch.port, launch.rank);
}

[[noreturn]] void refuse(const Launch& launch, const std::string& found) {
  throw InputError(
      "{}: {}: set MASTER_PORT to a free port, the same on all ranks of this run, because each run needs "
      "its own port",
      where(launch), found);
}

// Returns the value of a key that rank 0 sets when it has opened the store.
std::string await(Store& store, const Launch& launch, const std::string& key, milliseconds limit) {
  if (auto value = store.wait_for(key, limit)) return *value;
  throw Error("{}: rank 0 did not set '{}' within {} ms", where(launch), key, limit.count());
}

// Rank 0 names the run in the store. The other ranks wait for the name. If the store has the name of another run
// instead, they throw.
void compare_runs(Store& store, const Launch& launch, milliseconds limit) {
  const std::string own =
      fmt::format("{} of {} ranks", launch.run.empty() ? "without identity" : launch.run, launch.size);
  const std::string own_key = fmt::format("{} {}", kRun, own);
  if (launch.rank == 0) {
    store.set(own_key, "here");
    return store.set(kRun, own);
  }
  const auto begin = Clock::now();
  std::optional<Clock::time_point> doubted;
  for (; !store.find(own_key); std::this_thread::sleep_for(kPollPause)) {
    const auto found = store.find(kRun);
    if (!found && Clock::now() - begin > limit)
      throw Error("{}: rank 0 did not name the run within {} ms", where(launch), limit.count());
    if (!found || *found == own) continue;
    if (!doubted) doubted = Clock::now();
    if (Clock::now() - *doubted > kDoubt)
      refuse(launch, fmt::format("expected the run '{}', found the run '{}'", base::printable(own),
                                 base::printable(std::string_view(*found).substr(0, kLongestShown))));
  }
}

// Rank 0 draws an identity. Every place of the run is taken once, so each rank gets the identity once.
std::string hand_out_identity(Store& store, const Launch& launch, milliseconds limit) {
  if (store.add(place_key(launch.rank), 1) != 1)
    refuse(launch, fmt::format("expected a free place of rank {}, but another process has taken it", launch.rank));
  if (launch.rank > 0) {
    std::string given = await(store, launch, given_key(launch.rank), limit);
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (given.size() != kIdentityDigits || !std::ranges::all_of(given, is_digit))
      refuse(launch, fmt::format("expected an identity of {} hexadecimal digits from rank 0, found '{}'",
                                 kIdentityDigits, base::printable(std::string_view(given).substr(0, kLongestShown))));
    store.erase(given_key(launch.rank));
    return given;
  }
  std::string drawn = draw_identity();
  for (int rank = 1; rank < launch.size; ++rank) store.set(given_key(rank), drawn);
  return drawn;
}

}  // namespace

std::string draw_identity() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::shared_ptr<Store> join_run(std::shared_ptr<Store> store, const Launch& launch, milliseconds limit) {
  // A store that the launcher hosts may serve several runs, and the attempts of a run that the launcher restarts.
  const std::string attempt = fmt::format("attempt {} of {} ranks/", launch.attempt, launch.size);
  if (!launch.hosts_store) compare_runs(*store, launch, limit);
  std::string run = launch.run;
  if (run.empty())
    run = hand_out_identity(launch.hosts_store ? *make_prefix_store(store, attempt) : *store, launch, limit);
  return make_prefix_store(std::move(store), fmt::format("run {}, {}", run, attempt));
}

}  // namespace tessera::rendezvous
