// Work on files that all ranks of a group do at the same time, and that succeeds or fails on all of them alike.
#pragma once
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::checkpoint {

// What the user gave was wrong, and every rank of a group throws so in the same words.
class AgreedInputError : public InputError {
 public:
  AgreedInputError(const std::string& message, int rank) : InputError(message), rank_(rank) {}
  int rank() const { return rank_; }  // who throws this one

 private:
  int rank_;
};

// A failure that every rank of a group throws in the same words.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective. Runs `body` on every rank, on a thread of its own, and returns when all have finished. Meanwhile the
// ranks exchange signs of life, so that one rank may write for longer than the group's time limit while the others
// wait. If any rank's body throws, every rank throws the same error: the type (AgreedInputError or AgreedError) and
// message of the lowest failing rank, as "WHAT: rank 3: ...", or without a `what` as "rank 3: ...", of rank 0 as it is.
// If the group itself fails (a dead rank), the stop token is set, the body is waited for, and the group's error is
// thrown. One call at a time a communicator.
void run_together(comm::Communicator& group, const std::string& what, const std::function<void(std::stop_token)>& body);

// Collective. The text of rank 0, on every rank.
std::string broadcast_text(comm::Communicator& group, const std::string& text);
// Collective. On rank 0 every rank's text, in rank order; on the others nothing.
std::vector<std::string> gather_text(comm::Communicator& group, const std::string& text);

}  // namespace tessera::checkpoint
