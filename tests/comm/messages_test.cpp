// Tests collectives as messages: delivering the messages of all members gives the collective's result.
#include "tessera/comm/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"

namespace tessera::comm {
namespace {

using Counts = std::vector<std::int64_t>;
using Values = std::vector<std::int32_t>;

constexpr auto kType = quant::DType::i32;
constexpr int kMaxRanks = 6;

std::vector<GroupIdentity> members_of(int size) {
  std::vector<GroupIdentity> members;
  for (int rank = 0; rank < size; ++rank) {
    members.push_back({.name = "group", .rank = rank, .members = {}});
    for (int other = 0; other < size; ++other) members.back().members.push_back(10 * other + 3);
  }
  return members;
}

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts random_counts(int size, std::mt19937& random) {
  Counts counts;
  for (int i = 0; i < size; ++i) counts.push_back(random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 5));
  return counts;
}

// The values differ between ranks and elements.
Values values(std::int64_t count, int rank) {
  Values values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 1000 * rank);
  return values;
}

Values part(const Values& all, const Counts& counts, int rank) {
  const std::int64_t begin = offset_of(counts, rank), end = begin + counts[static_cast<std::size_t>(rank)];
  return {all.begin() + begin, all.begin() + end};
}

Values joined(const std::vector<Values>& parts) {
  Values all;
  for (const Values& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Delivers all messages. The k-th send to a peer matches the peer's k-th receive. Checks that no message is left over,
// empty, or to its own sender.
void deliver(const std::vector<Messages>& members) {
  const int size = static_cast<int>(members.size());
  for (int from = 0; from < size; ++from) {
    const Messages& sender = members[static_cast<std::size_t>(from)];
    for (const Send& send : sender.sends) {
      EXPECT_NE(send.peer, from);
      EXPECT_GT(send.bytes, 0u);
    }
    for (int to = 0; to < size; ++to) {
      std::vector<Send> sends;
      std::vector<Receive> receives;
      for (const Send& send : sender.sends)
        if (send.peer == to) sends.push_back(send);
      for (const Receive& receive : members[static_cast<std::size_t>(to)].receives)
        if (receive.peer == from) receives.push_back(receive);
      ASSERT_EQ(sends.size(), receives.size());
      for (std::size_t i = 0; i < sends.size(); ++i) {
        ASSERT_EQ(sends[i].bytes, receives[i].bytes);
        std::memcpy(receives[i].data, sends[i].data, sends[i].bytes);
      }
    }
    for (const Copy& copy : sender.own) {
      EXPECT_GT(copy.bytes, 0u);
      EXPECT_NE(copy.source, copy.target);
      std::memcpy(copy.target, copy.source, copy.bytes);
    }
  }
}

class MessagesOf : public ::testing::TestWithParam<int> {
 protected:
  // Delivers operation(rank) of every member.
  template <typename Make>
  void run(Make operation) {
    std::vector<Messages> messages;
    for (const GroupIdentity& member : members_) messages.push_back(messages_of(operation(member.rank), member));
    deliver(messages);
  }

  const int size_ = GetParam();
  const std::vector<GroupIdentity> members_ = members_of(size_);
  std::mt19937 random_{static_cast<unsigned>(size_)};
};

TEST_P(MessagesOf, AllGathersWithUnequalAndEmptyParts) {
  for (int round = 0; round < 20; ++round) {
    const Counts counts = random_counts(size_, random_);
    std::vector<Values> sent, received(members_.size(), Values(static_cast<std::size_t>(total(counts)), -1));
    for (const GroupIdentity& member : members_) {
      sent.push_back(values(counts[static_cast<std::size_t>(member.rank)], member.rank));
      if (round % 2 == 0) continue;  // the operation is in place
      Values& place = received[static_cast<std::size_t>(member.rank)];
      std::copy(sent.back().begin(), sent.back().end(), place.begin() + offset_of(counts, member.rank));
    }
    run([&](int rank) {
      auto& target = received[static_cast<std::size_t>(rank)];
      const void* own = sent[static_cast<std::size_t>(rank)].data();
      if (round % 2 != 0) own = target.data() + offset_of(counts, rank);
      return Operation{
          .kind = OperationKind::all_gather, .type = kType, .send = own, .recv = target.data(), .recv_counts = counts};
    });
    for (const Values& found : received) EXPECT_EQ(found, joined(sent));
  }
}

TEST_P(MessagesOf, AllToAlls) {
  for (int round = 0; round < 20; ++round) {
    std::vector<Counts> counts;  // index: sender; then receiver
    std::vector<Values> sent, received;
    for (int rank = 0; rank < size_; ++rank) {
      counts.push_back(random_counts(size_, random_));
      sent.push_back(values(total(counts.back()), rank));
    }
    std::vector<Counts> to_receive(members_.size());
    for (int rank = 0; rank < size_; ++rank) {
      Counts& own = to_receive[static_cast<std::size_t>(rank)];
      for (const Counts& of_sender : counts) own.push_back(of_sender[static_cast<std::size_t>(rank)]);
      received.emplace_back(static_cast<std::size_t>(total(own)), -1);
    }
    run([&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      return Operation{.kind = OperationKind::all_to_all,
                       .type = kType,
                       .send = sent[r].data(),
                       .recv = received[r].data(),
                       .send_counts = counts[r],
                       .recv_counts = to_receive[r]};
    });
    for (int rank = 0; rank < size_; ++rank) {
      std::vector<Values> expected;
      for (std::size_t from = 0; from < members_.size(); ++from)
        expected.push_back(part(sent[from], counts[from], rank));
      EXPECT_EQ(received[static_cast<std::size_t>(rank)], joined(expected));
    }
  }
}

TEST_P(MessagesOf, ExchangesOfSeveralMessagesForEachPair) {
  constexpr std::int64_t most = 3;
  std::vector<Values> sent, received;
  std::vector<Operation> operations(members_.size(), {.kind = OperationKind::exchange});
  for (int rank = 0; rank < size_; ++rank) {
    sent.push_back(values(most * size_, rank));
    received.emplace_back(static_cast<std::size_t>(most * size_), -1);
  }
  std::vector<Values> expected = received;
  for (int from = 0; from < size_; ++from)
    for (int to = 0; to < size_; ++to)
      for (std::int64_t i = 0; i < most; ++i) {
        const auto source = static_cast<std::size_t>(most * to + i), target = static_cast<std::size_t>(most * from + i);
        const auto f = static_cast<std::size_t>(from), t = static_cast<std::size_t>(to);
        const std::size_t bytes = (from + to + i) % 3 == 0 ? 0 : sizeof(std::int32_t);
        operations[f].sends.push_back({.peer = to, .data = &sent[f][source], .bytes = bytes});
        operations[t].receives.push_back({.peer = from, .data = &received[t][target], .bytes = bytes});
        if (bytes > 0) expected[t][target] = sent[f][source];
      }
  run([&](int rank) { return operations[static_cast<std::size_t>(rank)]; });
  EXPECT_EQ(received, expected);
}

// Delivers the parts of every member's operation and returns them. `scratch` owns their memory.
std::vector<PartsToSum> delivered_parts(const std::vector<Operation>& operations,
                                        const std::vector<GroupIdentity>& members,
                                        std::vector<std::vector<std::byte>>& scratch) {
  std::vector<PartsToSum> sums;
  std::vector<Messages> messages;
  for (std::size_t i = 0; i < members.size(); ++i) {
    scratch.emplace_back(scratch_bytes(operations[i], members[i]));
    sums.push_back(parts_to_sum(operations[i], members[i], scratch.back().data()));
    messages.push_back(sums.back().messages);
  }
  deliver(messages);
  return sums;
}

Values found_part(const PartsToSum& sum, int rank) {
  const auto* begin = static_cast<const std::int32_t*>(sum.parts[static_cast<std::size_t>(rank)]);
  return sum.count == 0 ? Values{} : Values(begin, begin + sum.count);
}

TEST_P(MessagesOf, ReduceScattersDeliverEveryPart) {
  for (int round = 0; round < 20; ++round) {
    const Counts counts = random_counts(size_, random_);
    std::vector<Values> sent;
    std::vector<Operation> operations;
    for (int rank = 0; rank < size_; ++rank) {
      sent.push_back(values(total(counts), rank));
      operations.push_back({.kind = OperationKind::reduce_scatter, .type = kType, .send_counts = counts});
    }
    for (std::size_t i = 0; i < operations.size(); ++i) operations[i].send = sent[i].data();
    std::vector<std::vector<std::byte>> scratch;
    const std::vector<PartsToSum> sums = delivered_parts(operations, members_, scratch);
    for (int rank = 0; rank < size_; ++rank)
      for (int from = 0; from < size_; ++from)
        EXPECT_EQ(found_part(sums[static_cast<std::size_t>(rank)], from),
                  part(sent[static_cast<std::size_t>(from)], counts, rank));
  }
}

TEST_P(MessagesOf, AllReducesDeliverAllElements) {
  for (const std::int64_t count : {0, 1, 17}) {
    std::vector<Values> sent;
    std::vector<Operation> operations;
    for (int rank = 0; rank < size_; ++rank) {
      sent.push_back(values(count, rank));
      operations.push_back({.kind = OperationKind::all_reduce, .type = kType, .recv_counts = {count}});
    }
    for (std::size_t i = 0; i < operations.size(); ++i) operations[i].recv = sent[i].data();
    std::vector<std::vector<std::byte>> scratch;
    const std::vector<PartsToSum> sums = delivered_parts(operations, members_, scratch);
    for (std::size_t rank = 0; rank < sums.size(); ++rank)
      for (const Receive& receive : sums[rank].messages.receives)
        EXPECT_EQ((static_cast<std::byte*>(receive.data) - scratch[rank].data()) % base::kAlignment, 0u);
    for (const PartsToSum& sum : sums)
      for (int from = 0; from < size_; ++from) EXPECT_EQ(found_part(sum, from), sent[static_cast<std::size_t>(from)]);
  }
}

TEST_P(MessagesOf, HalvesOfAnAllReduceAreDenseAndInPlace) {
  for (const std::int64_t count : {0, 1, 17, 60}) {
    for (const GroupIdentity& member : members_) {
      Values data = values(count, 0);
      const Operation whole{
          .kind = OperationKind::all_reduce, .type = kType, .recv = data.data(), .recv_counts = {count}};
      const AllReduceHalves halves = halves_of_all_reduce(whole, member);
      EXPECT_EQ(halves.reduce_scatter.kind, OperationKind::reduce_scatter);
      EXPECT_EQ(halves.all_gather.kind, OperationKind::all_gather);
      EXPECT_EQ(total(halves.reduce_scatter.send_counts), count);
      EXPECT_EQ(halves.all_gather.recv_counts, halves.reduce_scatter.send_counts);
      EXPECT_EQ(halves.all_gather.send, halves.reduce_scatter.recv);
      EXPECT_TRUE(messages_of(halves.all_gather, member).own.empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, MessagesOf, ::testing::Range(1, kMaxRanks + 1));

TEST(Messages, SendsAndReceivesOfOneRankMustMatch) {
  const GroupIdentity alone = members_of(1).front();
  std::int32_t a = 0, b = 0;
  Operation operation{.kind = OperationKind::exchange, .sends = {{.peer = 0, .data = &a, .bytes = 4}}};
  EXPECT_THROW(messages_of(operation, alone), Error);
  operation.receives = {{.peer = 0, .data = &b, .bytes = 2}};
  EXPECT_THROW(messages_of(operation, alone), Error);
  operation.receives = {{.peer = 0, .data = &b, .bytes = 4}, {.peer = 0, .data = &a, .bytes = 4}};
  EXPECT_THROW(messages_of(operation, alone), Error);
}

TEST(Messages, EmptyMessagesAreSkipped) {
  const GroupIdentity alone = members_of(1).front();
  std::int32_t a = 7, b = 0;
  const Operation operation{.kind = OperationKind::exchange,
                            .sends = {{.peer = 0, .data = &b, .bytes = 0}, {.peer = 0, .data = &a, .bytes = 4}},
                            .receives = {{.peer = 0, .data = &b, .bytes = 4}, {.peer = 0, .data = &a, .bytes = 0}}};
  deliver({messages_of(operation, alone)});
  EXPECT_EQ(b, 7);
}

TEST(Messages, EachMemberStartsWithTheNextMember) {
  for (const GroupIdentity& member : members_of(4)) {
    std::vector<int> peers;
    member.for_each_peer([&](int peer) { peers.push_back(peer); });
    EXPECT_EQ(peers, (std::vector{(member.rank + 1) % 4, (member.rank + 2) % 4, (member.rank + 3) % 4}));
  }
}

TEST(Messages, ABarrierHasNoMessages) {
  EXPECT_THROW(messages_of({.kind = OperationKind::barrier}, members_of(2).front()), Error);
}

TEST(DividedCopies, CoverEachCopyInOrder) {
  std::byte from[40], to[40];
  const std::vector<Copy> copies{{.source = from, .target = to, .bytes = 20},
                                 {.source = from + 20, .target = to + 30, .bytes = 7}};
  std::vector<std::tuple<std::ptrdiff_t, std::ptrdiff_t, std::size_t>> parts;
  for (const Copy& part : divided_copies(copies, 8))
    parts.emplace_back(static_cast<const std::byte*>(part.source) - from, static_cast<std::byte*>(part.target) - to,
                       part.bytes);
  EXPECT_EQ(parts, (decltype(parts){{0, 0, 8}, {8, 8, 8}, {16, 16, 4}, {20, 30, 7}}));
  EXPECT_EQ(divided_copies(copies, 20).size(), 2u);
  EXPECT_EQ(divided_copies(copies, std::numeric_limits<std::size_t>::max()).size(), 2u);
  EXPECT_TRUE(divided_copies({{.source = from, .target = to, .bytes = 0}}, 8).empty());
  EXPECT_THROW(divided_copies(copies, 0), Error);
}

}  // namespace
}  // namespace tessera::comm
