// Assigns samples to steps, replicas and ranks: pure functions of the seed, the step and the position in the mesh.
//
// Samples. A stream of T tokens holds N = floor((T - 1) / seq_len) samples. Sample i is the tokens from i * seq_len to
// i * seq_len + seq_len, both included: seq_len inputs and, shifted by one, their targets.
//
// Order. Epoch e of a data set visits its samples in a permutation P of [0, N). A Feistel network with cycle walking
// computes P without a table. All arithmetic uses unsigned 64-bit integers:
//   mix(x)  = x ^= x >> 30, x *= 0xBF58476D1CE4E5B9, x ^= x >> 27, x *= 0x94D049BB133111EB, x ^= x >> 31
//             (the finalizer of SplitMix64, Steele et al. 2014);  c = 0x9E3779B97F4A7C15
//   key     = mix(mix(mix(seed + c) + e + c) + set + c)       set: index of the data set in its blend, 0 without one
//   key_r   = mix(key + (r + 1) * c)                          for rounds r = 0 ... 7
//   half h  = smallest h >= 1 with 4^h >= N
//   P(i): x = i; repeat x = E(x) until x < N, where E takes L = x >> h, R = x mod 2^h, does eight times
//         (L, R) = (R, L ^ (mix(key_r ^ R) mod 2^h)), and returns L << h | R
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace tessera::data {

// Returns the number of samples of a stream of `tokens` tokens. The number is 0 for fewer than seq_len + 1 tokens.
std::int64_t num_samples(std::int64_t tokens, std::int64_t seq_len);

struct PermutationKey {
  std::uint64_t seed = 0;
  std::int64_t set = 0, epoch = 0;
};

// A permutation of [0, size), size >= 1, without a table. One value takes less than a microsecond.
class Permutation {
 public:
  Permutation(const PermutationKey& key, std::int64_t size);
  std::int64_t operator()(std::int64_t index) const;  // 0 <= index < size

 private:
  std::uint64_t encrypt(std::uint64_t x) const;
  std::array<std::uint64_t, 8> keys_{};
  std::uint64_t size_;
  int half_bits_ = 1;
};

// Returns the number of the sample that is visited at `position` (from 0, counted over all epochs) of a set of `size`
// samples.
std::int64_t sample_at(std::uint64_t seed, std::int64_t set, std::int64_t size, std::int64_t position);

// A replica's part of the global batch: a number of consecutive sequences, and the number of readers that compute these
// sequences. A reader is a group of tp ranks, which compute the same samples. Different readers compute different
// samples. The ranks of replicas with equal numbers `schedule` execute one schedule.
struct ReplicaShare {
  std::int64_t sequences = 0, readers = 1;
  int schedule = 0;
};
// How the global batch is split over the replicas of the model. The sum of the replicas' shares is global_batch. Both
// batch sizes are numbers of sequences.
struct BatchShape {
  std::int64_t micro_batch = 1, global_batch = 1;
  std::vector<ReplicaShare> replicas;
};
// Returns a shape with equal shares. If global_batch is not a multiple of the number of replicas, the first replicas
// take one sequence more. `readers`: by replica.
BatchShape equal_shares(std::int64_t micro_batch, std::int64_t global_batch, const std::vector<std::int64_t>& readers);
// Identifies the samples that one reader computes in one microbatch.
struct Block {
  std::int64_t step = 1;  // from 1
  std::int64_t replica = 0, reader = 0, microbatch = 0;
};
// Returns the number of microbatches of a replica. Replicas with equal numbers of readers and equal numbers `schedule`
// have equal numbers of microbatches, because their ranks execute the same schedule.
std::int64_t microbatches_per_step(const BatchShape& shape, std::int64_t replica);
// Returns microbatches_per_step of every replica. One call of microbatches_per_step reads all replicas, and so does
// this function.
std::vector<std::int64_t> microbatches_by_replica(const BatchShape& shape);
struct Positions {
  std::int64_t first = 0, count = 0;
};
// Returns the positions, counted over all steps, of the block's consecutive samples. Replica d takes the d-th
// consecutive share of the global batch. The block's index in that share is microbatch * readers + reader. A block at
// or beyond the end of the share has fewer than micro_batch samples or no sample.
Positions positions_of(const BatchShape& shape, const Block& block);

}  // namespace tessera::data
