#include "tessera/data/sampler.h"

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

std::int64_t microbatches_per_step(const BatchShape& shape) {
  const std::int64_t blocks = shape.micro_batch * shape.readers * shape.replicas;
  TESSERA_CHECK(blocks > 0 && shape.global_batch > 0 && shape.global_batch % blocks == 0,
                "global batch {} is not a multiple of micro-batch {} x {} readers x {} replicas", shape.global_batch,
                shape.micro_batch, shape.readers, shape.replicas);
  return shape.global_batch / blocks;
}

std::int64_t first_position(const BatchShape& shape, const Block& block) {
  const std::int64_t share = shape.global_batch / shape.replicas;
  const bool inside = block.step >= 1 && block.replica >= 0 && block.replica < shape.replicas && block.reader >= 0 &&
                      block.reader < shape.readers && block.microbatch >= 0 &&
                      block.microbatch < microbatches_per_step(shape);
  TESSERA_CHECK(inside, "invalid block (step {}, replica {}, reader {}, microbatch {})", block.step, block.replica,
                block.reader, block.microbatch);
  const std::int64_t k = block.microbatch * shape.readers + block.reader;
  return (block.step - 1) * shape.global_batch + block.replica * share + k * shape.micro_batch;
}

}  // namespace tessera::data
