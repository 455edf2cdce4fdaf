#include "tessera/data/sampler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

std::int64_t num_samples(std::int64_t tokens, std::int64_t seq_len) {
  return tokens > 0 ? (tokens - 1) / seq_len : 0;
}

Permutation::Permutation(const PermutationKey& key, std::int64_t size) : size_(static_cast<std::uint64_t>(size)) {
  TESSERA_CHECK(size >= 1 && size <= std::int64_t{1} << 62, "a permutation of {} samples", size);
  std::uint64_t mixed = mix(key.seed + kGolden);
  mixed = mix(mixed + static_cast<std::uint64_t>(key.epoch) + kGolden);
  mixed = mix(mixed + static_cast<std::uint64_t>(key.set) + kGolden);
  for (std::size_t r = 0; r < keys_.size(); ++r) keys_[r] = mix(mixed + (r + 1) * kGolden);
  while (std::uint64_t{1} << (2 * half_bits_) < size_) ++half_bits_;
}

std::uint64_t Permutation::encrypt(std::uint64_t x) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = x >> half_bits_, right = x & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (mix(key ^ right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  auto x = static_cast<std::uint64_t>(index);
  TESSERA_CHECK(x < size_, "requested sample {} of {}", index, size_);
  do
    x = encrypt(x);  // ends with a value in [0, size) because encrypt is a permutation; at most 4 iterations on average
  while (x >= size_);
  return static_cast<std::int64_t>(x);
}

std::int64_t sample_at(std::uint64_t seed, std::int64_t set, std::int64_t size, std::int64_t position) {
  return Permutation({.seed = seed, .set = set, .epoch = position / size}, size)(position % size);
}

BatchShape equal_shares(std::int64_t micro_batch, std::int64_t global_batch, const std::vector<std::int64_t>& readers) {
  BatchShape shape{.micro_batch = micro_batch, .global_batch = global_batch, .replicas = {}};
  const auto replicas = static_cast<std::int64_t>(readers.size());
  for (std::int64_t replica = 0; replica < replicas; ++replica)
    shape.replicas.push_back({.sequences = global_batch / replicas + (replica < global_batch % replicas ? 1 : 0),
                              .readers = readers[static_cast<std::size_t>(replica)]});
  return shape;
}

std::int64_t microbatches_per_step(const BatchShape& shape, std::int64_t replica) {
  const ReplicaShare& own = shape.replicas.at(static_cast<std::size_t>(replica));
  const std::int64_t readers = own.readers;
  TESSERA_CHECK(readers > 0 && shape.micro_batch > 0, "replica {} has {} readers of {} sequences", replica, readers,
                shape.micro_batch);
  std::int64_t most = 0;
  for (const ReplicaShare& share : shape.replicas)
    if (share.readers == readers && share.schedule == own.schedule) most = std::max(most, share.sequences);
  return std::max<std::int64_t>(1, base::ceil_div(base::ceil_div(most, shape.micro_batch), readers));
}

std::vector<std::int64_t> microbatches_by_replica(const BatchShape& shape) {
  std::map<std::pair<std::int64_t, int>, std::int64_t> known;  // by readers and schedule
  std::vector<std::int64_t> microbatches;
  for (std::size_t replica = 0; replica < shape.replicas.size(); ++replica) {
    const ReplicaShare& share = shape.replicas[replica];
    const auto [at, is_new] = known.try_emplace({share.readers, share.schedule});
    if (is_new) at->second = microbatches_per_step(shape, static_cast<std::int64_t>(replica));
    microbatches.push_back(at->second);
  }
  return microbatches;
}

Positions positions_of(const BatchShape& shape, const Block& block) {
  const bool inside = block.step >= 1 && block.replica >= 0 &&
                      block.replica < static_cast<std::int64_t>(shape.replicas.size()) && block.reader >= 0 &&
                      block.reader < shape.replicas[static_cast<std::size_t>(block.replica)].readers &&
                      block.microbatch >= 0 && block.microbatch < microbatches_per_step(shape, block.replica);
  TESSERA_CHECK(inside, "invalid block (step {}, replica {}, reader {}, microbatch {})", block.step, block.replica,
                block.reader, block.microbatch);
  std::int64_t begin = (block.step - 1) * shape.global_batch;
  for (std::int64_t replica = 0; replica < block.replica; ++replica)
    begin += shape.replicas[static_cast<std::size_t>(replica)].sequences;
  const ReplicaShare& share = shape.replicas[static_cast<std::size_t>(block.replica)];
  const std::int64_t offset = (block.microbatch * share.readers + block.reader) * shape.micro_batch;
  return {.first = begin + offset, .count = std::clamp<std::int64_t>(share.sequences - offset, 0, shape.micro_batch)};
}

}  // namespace tessera::data
