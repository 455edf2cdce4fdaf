#include "tessera/runtime/watch/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/received_length.h"
#include "tessera/schedule/check/order_text.h"

namespace tessera::runtime {
namespace {

using namespace std::chrono_literals;
constexpr std::int64_t kLongestOrder = std::int64_t{1} << 30;  // largest number of bytes of the text of a call order
constexpr auto kSearch = 10s;  // time that this rank waits for the events of other ranks

// Returns the last stage before which both ranks recorded the same events. The ranks may differ in this stage. Returns
// nullopt if the step is over on both ranks without a difference, or if the ranks differed before the oldest hash that
// the other rank still posts.
std::optional<std::size_t> last_equal(const StepRecord& own, const PostedSteps::Step& theirs) {
  std::size_t equal = theirs.first;
  while (equal < own.hashes() && equal < theirs.end() && own.hash_before(equal) == theirs.hashes[equal - theirs.first])
    ++equal;
  if (equal == theirs.first) return std::nullopt;
  const bool both_over = own.is_over() && theirs.is_over;
  if (both_over && equal == own.hashes() && equal == theirs.end()) return std::nullopt;
  return equal - 1;
}

// Two ranks and a stage; before this stage both ranks recorded the same events.
struct Pair {
  const StepRecord& own;
  int own_rank = 0;
  const PostedSteps& theirs;
  const PostedSteps::Step& their_step;
  int their_rank = 0;
  std::size_t stage = 0;
};

// Returns the first event in which the ranks differ, or an empty text if both may still record the same events.
std::string difference_in(const Pair& pair, const std::vector<std::string>& names) {
  const std::size_t begin = pair.own.begin_of(pair.stage), end = pair.own.end_of(pair.stage);
  const std::span<const schedule::Event> own(pair.own.trace().begin() + static_cast<std::ptrdiff_t>(begin),
                                             end - begin);
  const std::span<const schedule::Event> theirs(pair.theirs.events);
  std::size_t equal = 0;
  while (equal < own.size() && equal < theirs.size() && is_same(own[equal], theirs[equal])) ++equal;
  // A rank that has no further event may still record more events, unless it has ended the stage.
  const auto text_at = [&](std::span<const schedule::Event> events, bool ended, bool is_last) -> std::string {
    if (equal < events.size()) return to_string(events[equal], names);
    if (!ended) return {};
    return is_last ? "the end of the step" : "the end of the microbatch";
  };
  const std::size_t hashes = pair.own.hashes(), their_hashes = pair.their_step.end(), next = pair.stage + 1;
  const std::string ours = text_at(own, next < hashes || pair.own.is_over(), next == hashes);
  const std::string other =
      text_at(theirs, pair.theirs.is_whole && (next < their_hashes || pair.their_step.is_over), next == their_hashes);
  if ((equal == own.size() && equal == theirs.size()) || ours.empty() || other.empty()) return {};
  return fmt::format("the ranks of a step must do the same: event {} is '{}' on rank {}, '{}' on rank {}",
                     begin + equal, ours, pair.own_rank, other, pair.their_rank);
}

}  // namespace

void Agreement::post() const {
  parallel_.board->post(encode_posted_steps(history_.steps(), {}));
}

std::string Agreement::difference() const {
  const std::vector<std::string> names = parameters_.names();
  if (history_.trace().empty() && history_.steps().size() == 1) return {};
  std::optional<Stage> wanted;
  const int own_class = parallel_.class_of[static_cast<std::size_t>(parallel_.rank)];
  for (int rank = 0; rank < parallel_.world->size(); ++rank) {
    if (rank == parallel_.rank || parallel_.class_of[static_cast<std::size_t>(rank)] != own_class) continue;
    const PostedSteps posted = parse_posted_steps(parallel_.board->read(rank));
    for (const StepRecord& own : history_.steps()) {
      const PostedSteps::Step* theirs = posted.find(own.number());
      const auto stage = theirs ? last_equal(own, *theirs) : std::nullopt;
      if (!stage) continue;
      const Stage place{.step = own.number(), .index = static_cast<std::int64_t>(*stage)};
      wanted = wanted ? std::min(*wanted, place) : place;
      std::string found;
      if (posted.dumped == place) found = difference_in({own, parallel_.rank, posted, *theirs, rank, *stage}, names);
      if (!found.empty()) {
        parallel_.board->post(
            encode_posted_steps(history_.steps(), place));  // so that the other rank sees the difference too
        return found;
      }
      break;
    }
  }
  parallel_.board->post(encode_posted_steps(history_.steps(), wanted.value_or(Stage{})));
  return {};
}

void Agreement::poll() {
  try {
    const std::string found = difference();
    if (found.empty()) return;
    std::this_thread::sleep_for(200ms);  // the other ranks read the events that this rank has posted
    throw Error("{}", found);
  } catch (...) {
    // Cancels pending operations, because they use memory of functions that this exception unwinds.
    parallel_.cancel();
    parallel_.drain();
    throw;
  }
}

void Agreement::poll_until(const base::Fence& fence, std::chrono::milliseconds poll_after) {
  for (auto limit = poll_after; !fence.wait_for(limit); limit = kPollInterval) poll();
  // If the events of the ranks differ, a peer made another call or no call. The collective may have failed for this
  // reason.
  for (int tries = 0; fence.error() && tries < 10; ++tries) {
    poll();
    std::this_thread::sleep_for(50ms);
  }
}

void Agreement::wait(const base::Fence& fence) {
  poll_until(fence, kPollInterval);
  parallel_.compute->wait(fence);
}

void Agreement::wait_on_host(const base::Fence& fence, std::chrono::milliseconds poll_after) {
  poll_until(fence, poll_after);
  fence.synchronize();
}

void Agreement::begin(Comparison& comparison) const {
  comm::Communicator& group = *comparison.group;
  comparison.all.resize(static_cast<std::size_t>(group.size()));
  static_assert(sizeof(std::uint64_t) == sizeof(std::int64_t));
  comparison.done =
      group.all_gather(&comparison.own, comparison.all.data(), comm::equal_counts(group.size(), 1), quant::DType::i64);
}

void Agreement::finish(const Comparison& comparison) {
  wait_on_host(comparison.done);
  const auto is_own = [&](std::uint64_t number) { return number == comparison.own; };
  const auto other = std::ranges::find_if_not(comparison.all, is_own);
  if (other == comparison.all.end()) return;
  const auto until = std::chrono::steady_clock::now() + kSearch;
  while (std::chrono::steady_clock::now() < until) {
    poll();
    std::this_thread::sleep_for(20ms);
  }
  throw Error("{} differs in {}: {:x} on its rank {}, {:x} on its rank {}", comparison.what, comparison.group->name(),
              comparison.own, comparison.group->rank(), *other, other - comparison.all.begin());
}

void Agreement::compare(comm::Communicator& group, std::uint64_t number, const std::string& what) {
  if (group.size() == 1) return;
  Comparison comparison{.step = history_.step(), .group = &group, .what = what, .own = number, .all = {}, .done = {}};
  begin(comparison);
  finish(comparison);
}

std::vector<schedule::CallOrder> Agreement::orders_of_classes(const schedule::CallOrder& own) {
  const std::vector<int>& class_of = parallel_.class_of;
  const int own_class = class_of[static_cast<std::size_t>(parallel_.rank)];
  const bool speaks = std::ranges::find(class_of, own_class) - class_of.begin() == parallel_.rank;
  const std::string text = speaks ? to_text(own) : std::string();
  const auto own_size = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> sizes(class_of.size());
  comm::Communicator& world = *parallel_.world;
  wait_on_host(world.all_gather(&own_size, sizes.data(), comm::equal_counts(world.size(), 1), quant::DType::i64));
  std::size_t total = 0;
  for (std::size_t member = 0; member < sizes.size(); ++member)
    total += comm::received_length(sizes[member], kLongestOrder, "bytes of its call order", static_cast<int>(member));
  std::string all(total, ' ');
  wait_on_host(world.all_gather(text.data(), all.data(), sizes, quant::DType::u8));
  // The world's members are in the order of their places.
  const std::vector<int> members = parallel_.mesh.group_of(parallel_.rank, parallel_.mesh.all_axes());
  std::vector<schedule::CallOrder> orders(static_cast<std::size_t>(std::ranges::max(class_of)) + 1);
  std::size_t begin = 0;
  for (std::size_t member = 0; member < sizes.size(); ++member) {
    const auto size = static_cast<std::size_t>(sizes[member]);
    const int its_class = class_of[static_cast<std::size_t>(members[member])];
    if (size > 0) orders[static_cast<std::size_t>(its_class)] = schedule::call_order_of(all.substr(begin, size));
    begin += size;
  }
  return orders;
}

void Agreement::compare_later() {
  if (parallel_.rank_class->size() == 1) return;
  finish_until(history_.step() - static_cast<std::int64_t>(kKeptSteps) + 1);  // the record of the step must still exist
  // Devices reach this point at about the same time, but hosts do not. Without this wait, a device would wait for the
  // slowest host.
  parallel_.rank_class->lane().wait(parallel_.compute->record());
  begin(open_.emplace_back(Comparison{.step = history_.step(),
                                      .group = parallel_.rank_class,
                                      .what = "what a step did",
                                      .own = history_.hash(),
                                      .all = {},
                                      .done = {}}));
}

void Agreement::finish_until(std::int64_t step) {
  for (; !open_.empty() && open_.front().step <= step; open_.pop_front()) finish(open_.front());
}

}  // namespace tessera::runtime
