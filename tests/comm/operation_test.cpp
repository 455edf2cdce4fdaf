#include "tessera/comm/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tessera/base/error.h"
#include "tessera/comm/received_length.h"

namespace tessera::comm {
namespace {

const GroupIdentity kPair{.name = "gtp[0,1]", .rank = 0, .members = {0, 1}};

TEST(Operations, AreSentAsNumbers) {
  Operation sent{
      .kind = OperationKind::all_to_all, .type = quant::DType::fp32, .send_counts = {1, 2}, .recv_counts = {3, 4}};
  sent.sends.push_back({.peer = 1, .bytes = 8});
  const Operation received = from_numbers(to_numbers(sent), kPair);
  EXPECT_EQ(mismatch(kPair, 0, sent, 1, received),
            "all_to_all: rank 0 sends 2 elements of fp32 to rank 1, which expects 3");
}

// A description comes from another process.
TEST(Operations, DamagedDescriptionsAreRefused) {
  const std::vector<std::int64_t> whole =
      to_numbers({.kind = OperationKind::all_gather, .send_counts = {}, .recv_counts = {3, 4}});
  EXPECT_EQ(from_numbers(whole, kPair).recv_counts, (std::vector<std::int64_t>{3, 4}));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(from_numbers(std::span(whole).first(size), kPair), Error) << size;
  for (const OperationKind kind : {OperationKind::all_to_all, OperationKind::reduce_scatter, OperationKind::all_reduce,
                                   OperationKind::broadcast}) {
    std::vector<std::int64_t> other = whole;
    other[0] = static_cast<std::int64_t>(kind);
    EXPECT_THAT([&] { from_numbers(other, kPair); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("a peer's description of its")))
        << name_of(kind);
  }
  std::vector<std::int64_t> endless = whole;
  endless[4] = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(from_numbers(endless, kPair), Error);
}

TEST(Operations, LengthsOfPeersAreChecked) {
  EXPECT_EQ(received_length(5, 5, "bytes", 1), 5u);
  for (const std::int64_t length : {std::int64_t{-1}, std::int64_t{6}, std::numeric_limits<std::int64_t>::max()})
    EXPECT_THAT(
        [&] { received_length(length, 5, "bytes of a text", 1); },
        testing::ThrowsMessage<Error>(fmt::format("rank 1 announced {} bytes of a text: expected 0 to 5", length)));
}

}  // namespace
}  // namespace tessera::comm
