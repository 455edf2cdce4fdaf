#include "tessera/comm/mpi/task.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"

namespace tessera::comm {
namespace {

// Calls piece(offset, bytes) for each piece of a message, and once for an empty message.
template <typename Piece>
void for_each_piece(std::size_t bytes, Piece piece) {
  std::size_t offset = 0;
  do {
    const std::size_t size = std::min(mpi_piece(bytes), bytes - offset);
    piece(offset, static_cast<int>(size));
    offset += size;
  } while (offset < bytes);
}

std::string ranks_of(const std::set<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

std::size_t mpi_piece(std::size_t bytes) {
  constexpr std::size_t smallest = std::size_t{1} << 18, largest = std::size_t{1} << 30, pieces = 64;
  return std::clamp(base::align_up(bytes / pieces), smallest, largest);
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error("{}: {}", call, std::string(text.data(), static_cast<std::size_t>(length)));
}

void MpiProgress::Task::post(MPI_Comm comm, const MpiRound& round) {
  for (const Receive& receive : round.receives)
    for_each_piece(receive.bytes, [&](std::size_t offset, int bytes) {
      requests.push_back({.peer = receive.peer, .receives = true, .bytes = bytes});
      check_mpi(MPI_Irecv(static_cast<std::byte*>(receive.data) + offset, bytes, MPI_BYTE, receive.peer, round.tag,
                          comm, &handles.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Irecv");
    });
  for (const Send& send : round.sends)
    for_each_piece(send.bytes, [&](std::size_t offset, int bytes) {
      requests.push_back({.peer = send.peer, .receives = false, .bytes = bytes});
      check_mpi(MPI_Isend(static_cast<const std::byte*>(send.data) + offset, bytes, MPI_BYTE, send.peer, round.tag,
                          comm, &handles.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend");
    });
}

std::size_t MpiProgress::Task::test() {
  if (is_done()) return 0;
  indices_.resize(handles.size());
  statuses_.resize(handles.size());
  int count = 0;
  const int code =
      MPI_Testsome(static_cast<int>(handles.size()), handles.data(), &count, indices_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED) count = 0;
  for (int i = 0; i < count; ++i) {
    const auto& request = requests[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    const bool too_long = code == MPI_ERR_IN_STATUS && status.MPI_ERROR == MPI_ERR_TRUNCATE;
    if (code == MPI_ERR_IN_STATUS && !too_long) check_mpi(status.MPI_ERROR, "MPI_Testsome");
    int bytes = 0;
    if (request.receives && !too_long) MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (too_long || (request.receives && bytes != request.bytes))
      throw Error("the calls do not match: expected a message of {} bytes from rank {}, got {}", request.bytes,
                  request.peer, too_long ? std::string("a longer one") : fmt::format("{} bytes", bytes));
  }
  completed += static_cast<std::size_t>(count);
  return static_cast<std::size_t>(count);
}

void MpiProgress::Task::cancel_receives() {
  for (std::size_t i = 0; i < handles.size(); ++i)
    if (requests[i].receives && handles[i] != MPI_REQUEST_NULL) MPI_Cancel(&handles[i]);
}

bool MpiProgress::Task::is_released() {
  indices_.resize(handles.size());
  int count = 0;
  MPI_Testsome(static_cast<int>(handles.size()), handles.data(), &count, indices_.data(), MPI_STATUSES_IGNORE);
  for (std::size_t i = 0; i < handles.size(); ++i)
    if (requests[i].peer >= 0 && handles[i] != MPI_REQUEST_NULL) return false;
  return true;
}

std::vector<int> MpiProgress::Task::missing_ranks() const {
  std::set<int> ranks;
  for (std::size_t i = 0; i < handles.size() && i < requests.size(); ++i)
    if (handles[i] != MPI_REQUEST_NULL) ranks.insert(requests[i].peer);
  if (ranks.contains(-1)) return {};
  return {ranks.begin(), ranks.end()};
}

std::string MpiProgress::Task::missing() const {
  std::set<int> senders, receivers;
  bool all = false;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i < handles.size() && handles[i] == MPI_REQUEST_NULL) continue;
    all = all || requests[i].peer < 0;
    (requests[i].receives ? senders : receivers).insert(requests[i].peer);
  }
  if (all) return "not all ranks joined the call";
  std::string text;
  if (!senders.empty()) text = fmt::format("nothing received from {}", ranks_of(senders));
  if (!receivers.empty()) text += fmt::format("{}not received by {}", text.empty() ? "" : "; ", ranks_of(receivers));
  return text;
}

}  // namespace tessera::comm
