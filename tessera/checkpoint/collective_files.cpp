#include "tessera/checkpoint/collective_files.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <numeric>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/comm/received_length.h"

namespace tessera::checkpoint {
namespace {

// The pause between keep-alive messages. It is much shorter than any usual time limit of a group, and much longer than
// a small all_reduce.
constexpr std::chrono::milliseconds kSignOfLife{100};

constexpr std::int64_t kLongestText = std::int64_t{1} << 32;  // largest number of bytes of a text of one rank

enum class Outcome : std::int32_t { done, input_error, out_of_memory, error };

struct Result {
  Outcome outcome = Outcome::done;
  std::string message;
};

Result result_of(std::future<void>& work) {
  try {
    base::naming_failed_allocations([&] { work.get(); });
    return {};
  } catch (const InputError& error) {
    return {Outcome::input_error, error.what()};
  } catch (const base::OutOfMemory& error) {
    return {Outcome::out_of_memory, error.what()};
  } catch (const std::exception& error) {
    return {Outcome::error, error.what()};
  }
}

template <typename T>
std::vector<T> all_gather_one(comm::Communicator& group, T value, quant::DType type) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  const std::vector<std::int64_t> counts(all.size(), 1);
  group.all_gather(&value, all.data(), counts, type).synchronize();
  return all;
}

// Returns the length of the text of member `rank`.
std::size_t length_of(const std::vector<std::int64_t>& lengths, int rank) {
  return comm::received_length(lengths[static_cast<std::size_t>(rank)], kLongestText, "bytes of a text", rank);
}

void wait_for_all(comm::Communicator& group, const std::future<void>& work) {
  for (std::int32_t running = 1; running != 0;) {
    running = work.wait_for(kSignOfLife) == std::future_status::ready ? 0 : 1;
    group.all_reduce(&running, 1, quant::DType::i32, comm::ReduceOp::max).synchronize();
  }
}

// Throws on every rank if a rank failed.
void agree(comm::Communicator& group, const std::string& what, const Result& own) {
  const auto outcomes = all_gather_one(group, static_cast<std::int32_t>(own.outcome), quant::DType::i32);
  const auto first = std::find_if(outcomes.begin(), outcomes.end(), [](std::int32_t outcome) { return outcome != 0; });
  if (first == outcomes.end()) return;
  const auto rank = static_cast<int>(first - outcomes.begin());
  const auto lengths = all_gather_one(group, static_cast<std::int64_t>(own.message.size()), quant::DType::i64);
  std::string message = group.rank() == rank ? own.message : std::string();
  message.resize(length_of(lengths, rank));
  group.broadcast(message.data(), static_cast<std::int64_t>(message.size()), quant::DType::u8, rank).synchronize();
  const auto others = std::count_if(first + 1, outcomes.end(), [](std::int32_t outcome) { return outcome != 0; });
  // If `what` is empty, the line has no label, and only ranks above 0 are named.
  std::string line = what.empty() ? message : fmt::format("{}: rank {}: {}", what, rank, message);
  if (what.empty() && rank > 0) line = fmt::format("rank {}: {}", rank, message);
  if (others > 0 && !what.empty()) line += fmt::format(" (and {} more ranks failed)", others);
  if (static_cast<Outcome>(*first) == Outcome::input_error) throw AgreedInputError(line, group.rank());
  if (static_cast<Outcome>(*first) == Outcome::out_of_memory) throw AgreedOutOfMemory(line);
  throw AgreedError(line);
}

}  // namespace

void run_together(comm::Communicator& group, const std::string& what,
                  const std::function<void(std::stop_token)>& body) {
  std::stop_source stop;
  std::future<void> work = std::async(std::launch::async, [&] {
    base::set_device(group.kernels().device());  // CUDA selects GPU 0 in a new thread
    body(stop.get_token());
  });
  try {
    wait_for_all(group, work);
  } catch (...) {
    stop.request_stop();
    work.wait();
    throw;
  }
  agree(group, what, result_of(work));
}

bool exists_on_first_rank(comm::Communicator& group, const std::filesystem::path& path) {
  bool found = false;
  run_together(group, "", [&](const std::stop_token&) { found = group.rank() == 0 && std::filesystem::exists(path); });
  return !broadcast_text(group, found ? "found" : "").empty();
}

std::string broadcast_text(comm::Communicator& group, const std::string& text) {
  std::int64_t length = static_cast<std::int64_t>(text.size());
  group.broadcast(&length, 1, quant::DType::i64, 0).synchronize();
  std::string result = group.rank() == 0 ? text : std::string(length_of({length}, 0), '\0');
  group.broadcast(result.data(), length, quant::DType::u8, 0).synchronize();
  return result;
}

std::vector<std::string> gather_text(comm::Communicator& group, const std::string& text) {
  const auto lengths = all_gather_one(group, static_cast<std::int64_t>(text.size()), quant::DType::i64);
  std::vector<std::string> texts;
  std::vector<comm::Receive> receives;
  if (group.rank() == 0) {
    for (int rank = 0; rank < group.size(); ++rank) texts.emplace_back(length_of(lengths, rank), '\0');
    for (int rank = 0; rank < group.size(); ++rank) {
      std::string& target = texts[static_cast<std::size_t>(rank)];
      receives.push_back({rank, target.data(), target.size()});
    }
  }
  group.exchange({{0, text.data(), text.size()}}, std::move(receives)).synchronize();
  return texts;
}

}  // namespace tessera::checkpoint
