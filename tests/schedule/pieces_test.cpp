// The checker on the pieces of a transfer over 3 ranks. Each mutation breaks one rule and expects its fault.
#include "tessera/schedule/check/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::schedule {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Event event_of(EventKind kind, std::string_view transfer, int piece, int ordinal = 0, int microbatch = 0) {
  return {.kind = kind, .microbatch = microbatch, .ordinal = ordinal, .group = "tp", .op = piece_op(transfer, piece)};
}

// Two gathers, and a scatter that begins between the needs of the second gather.
Trace trace_of_transfers() {
  const auto begin = [](std::string_view transfer, int piece, int ordinal = 0) {
    return event_of(EventKind::comm, transfer, piece, ordinal);
  };
  const auto need = [](std::string_view transfer, int piece, int ordinal = 0) {
    return event_of(EventKind::need, transfer, piece, ordinal);
  };
  return {begin("gather", 1),    begin("gather", 2),    need("gather", 1),    need("gather", 2),
          begin("gather", 1, 1), begin("gather", 2, 1), need("gather", 1, 1), begin("scatter", 1),
          need("gather", 2, 1),  begin("scatter", 2),   need("scatter", 1),   need("scatter", 2)};
}

std::vector<std::string> faults_of(const Trace& trace) {
  const std::vector<ParameterSize> sizes;
  const Schedule schedule;
  CheckFaults faults(trace, sizes, schedule);
  check_pieces(trace, faults);
  return faults.take();
}

TEST(Pieces, InOrderAreAccepted) {
  EXPECT_THAT(faults_of({}), IsEmpty());
  EXPECT_THAT(faults_of(trace_of_transfers()), IsEmpty());
}

TEST(Pieces, EveryDroppedEventIsRefused) {
  const Trace all = trace_of_transfers();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Trace trace = all;
    trace.erase(trace.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(faults_of(trace).empty()) << to_string(all[i]);
  }
}

TEST(Pieces, ANeedBeforeItsPieceIsRefused) {
  Trace trace = trace_of_transfers();
  std::swap(trace[9], trace[11]);
  EXPECT_THAT(faults_of(trace), Contains(HasSubstr("expected a piece that has begun before")));
}

TEST(Pieces, SwappedPiecesAreRefused) {
  for (const auto& [a, b] : {std::pair{0, 1}, {4, 5}, {7, 9}}) {
    Trace trace = trace_of_transfers();
    std::swap(trace[static_cast<std::size_t>(a)], trace[static_cast<std::size_t>(b)]);
    EXPECT_THAT(faults_of(trace), Contains(HasSubstr("expected piece 1 of the transfer")));
  }
}

TEST(Pieces, ANeedInAnotherMicrobatchIsRefused) {
  Trace trace = trace_of_transfers();
  trace.back().microbatch = 1;
  EXPECT_THAT(faults_of(trace), Contains(HasSubstr("expected a need in the same microbatch")));
}

}  // namespace
}  // namespace tessera::schedule
