// File operations that all ranks of a group run together. An operation succeeds on all ranks or fails on all ranks.
#pragma once
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/memory/out_of_memory.h"
#include "tessera/comm/communicator.h"

namespace tessera::checkpoint {

// An error in the user's input. Every rank of the group throws an AgreedInputError with the same message.
class AgreedInputError : public InputError {
 public:
  AgreedInputError(const std::string& message, int rank) : InputError(message), rank_(rank) {}
  int rank() const { return rank_; }  // the rank that throws this object

 private:
  int rank_;
};

// A failure for which every rank of a group throws the same message.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// A failed allocation, for which every rank of a group throws the same message.
class AgreedOutOfMemory : public base::OutOfMemory {
 public:
  using OutOfMemory::OutOfMemory;
};

// Runs `body` on every rank, on a separate thread, and returns when all ranks have finished. Meanwhile the ranks
// exchange keep-alive messages, so one rank may write for longer than the group's time limit while the others wait. If
// a rank's body throws, every rank throws the error of the lowest failing rank, as AgreedInputError, AgreedOutOfMemory
// or AgreedError. The message is "WHAT: rank 3: ...". If `what` is empty, the message is "rank 3: ...", or the plain
// message for rank 0. If the group itself fails, for example because a rank died, this function requests a stop of
// `body`, waits for `body` and throws the group's error. A communicator allows one call at a time. Collective.
void run_together(comm::Communicator& group, const std::string& what, const std::function<void(std::stop_token)>& body);

// Returns, on every rank, whether rank 0 sees the file or folder. Ranks may see different files, for example in a
// network file system, but must take the same decision. Throws AgreedError if rank 0 cannot read the path. Collective.
bool exists_on_first_rank(comm::Communicator& group, const std::filesystem::path& path);

// Texts have at most 4 GiB. If a rank announces more, the functions throw Error.
// Returns rank 0's text on every rank. Collective.
std::string broadcast_text(comm::Communicator& group, const std::string& text);
// Returns every rank's text in rank order on rank 0, and an empty list on the other ranks. Collective.
std::vector<std::string> gather_text(comm::Communicator& group, const std::string& text);

}  // namespace tessera::checkpoint
