#include "tessera/data/data.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

IndexedDataset open_set(const std::string& prefix, const std::string& flag) {
  try {
    return IndexedDataset(prefix);
  } catch (const InputError& error) {
    throw InputError("{}: {}", flag, error.what());
  }
}

std::vector<IndexedDataset> open_sets(const TrainingDataOptions& options) {
  std::vector<IndexedDataset> sets;
  for (const WeightedPrefix& set : parse_blend(options.blend, options.flag)) {
    const IndexedDataset& opened = sets.emplace_back(open_set(set.prefix, options.flag));
    if (opened.num_tokens() <= options.seq_len)
      throw InputError(
          "--seq-len: got {}, but {} '{}' holds {} tokens, expected at least {} (a sample is --seq-len + 1)",
          options.seq_len, options.flag, set.prefix, opened.num_tokens(), options.seq_len + 1);
  }
  return sets;
}

std::vector<double> weights_of(const TrainingDataOptions& options) {
  std::vector<double> weights;
  for (const WeightedPrefix& set : parse_blend(options.blend, options.flag)) weights.push_back(set.weight);
  return weights;
}

// Returns the shares of the checkpoint's fingerprint; empty if `stored` is not a fingerprint.
std::vector<std::int64_t> stored_shares(const nlohmann::json& stored) {
  std::vector<std::int64_t> shares;
  if (!stored.is_array()) return shares;
  for (const nlohmann::json& set : stored)
    if (set.is_object() && set.contains("share") && set["share"].is_number_integer())
      shares.push_back(set["share"].get<std::int64_t>());
  return shares;
}

// A resumed run keeps the order of samples of its checkpoint.
BlendOrder make_order(const TrainingDataOptions& options) {
  const std::vector<double> weights = weights_of(options);
  std::vector<std::int64_t> coarse = coarse_shares(weights);
  if (!options.uses_weights || stored_shares(options.stored) == coarse)
    return BlendOrder::from_shares(std::move(coarse));
  return BlendOrder(weights, options.flag);
}

}  // namespace

TrainingData::TrainingData(const TrainingDataOptions& options)
    : options_(options), sets_(open_sets(options)), order_(make_order(options)) {
  TESSERA_CHECK(options.seq_len > 0 && options.vocab_size > 0, "seq_len {} and vocab_size {} are not resolved",
                options.seq_len, options.vocab_size);
}

void TrainingData::check_vocabulary(std::int64_t part, std::int64_t parts) const {
  try {
    for (const IndexedDataset& set : sets_) set.check_vocabulary(options_.vocab_size, part, parts);
  } catch (const InputError& error) {
    throw InputError("{}: {}", options_.flag, error.what());
  }
}

void TrainingData::check_targets() const {
  const std::int64_t samples = num_samples();
  for (std::int64_t i = 0; i < samples; ++i)
    if (loss_tokens(sample_in_order(i)) > 0) return;
  throw InputError(
      "{}: no token of '{}' is a target, because each document is a single token and --mask-documents is on, expected "
      "documents of at least 2 tokens (or --mask-documents off)",
      options_.flag, fmt::join(options_.blend, " "));
}

std::int64_t TrainingData::num_tokens() const {
  std::int64_t sum = 0;
  for (const IndexedDataset& set : sets_) sum += set.num_tokens();
  return sum;
}

std::int64_t TrainingData::num_samples() const {
  std::int64_t sum = 0;
  for (const IndexedDataset& set : sets_) sum += data::num_samples(set.num_tokens(), options_.seq_len);
  return sum;
}

nlohmann::json TrainingData::fingerprint() const {
  nlohmann::json all = nlohmann::json::array();
  for (std::size_t i = 0; i < sets_.size(); ++i)
    all.push_back({{"share", order_.shares()[i]},
                   {"sequences", sets_[i].num_sequences()},
                   {"tokens", sets_[i].num_tokens()},
                   {"index_hash", fmt::format("{:016x}", sets_[i].index_hash())}});
  return all;
}

std::string TrainingData::note() const {
  const std::vector<double> weights = weights_of(options_);
  const std::vector<std::int64_t>& shares = order_.shares();
  const WorstShare worst = worst_share(shares, weights);
  if (worst.is_near()) return {};
  return fmt::format(
      "{}: the run keeps the shares of its checkpoint: set {} has {} of {} samples, {:.3g} times the share that its "
      "weight {} gives",
      options_.flag, worst.set + 1, shares[worst.set], order_.period(), worst.ratio, weights[worst.set]);
}

SampleId TrainingData::sample(std::int64_t position) const {
  const BlendOrder::Turn turn = order_.at(position);
  const std::int64_t size = data::num_samples(sets_[static_cast<std::size_t>(turn.set)].num_tokens(), options_.seq_len);
  return {.set = turn.set, .index = sample_at(options_.seed, turn.set, size, turn.index)};
}

std::vector<SampleId> TrainingData::samples_of(const BatchShape& shape, const Block& block) const {
  const Positions positions = positions_of(shape, block);
  std::vector<SampleId> samples;
  for (std::int64_t i = 0; i < positions.count; ++i) samples.push_back(sample(positions.first + i));
  return samples;
}

SampleId TrainingData::sample_in_order(std::int64_t i) const {
  TESSERA_CHECK(i >= 0 && i < num_samples(), "requested sample {} of {}", i, num_samples());
  SampleId id{.set = 0, .index = i};
  for (const IndexedDataset& set : sets_) {
    const std::int64_t size = data::num_samples(set.num_tokens(), options_.seq_len);
    if (id.index < size) break;
    id.index -= size;
    ++id.set;
  }
  return id;
}

const IndexedDataset& TrainingData::set_of(const SampleId& sample) const {
  return sets_.at(static_cast<std::size_t>(sample.set));
}

Batch TrainingData::assemble(const std::vector<SampleId>& samples) const {
  Batch batch;
  std::vector<std::int64_t> stretch(static_cast<std::size_t>(options_.seq_len + 1));
  for (const SampleId& sample : samples) append(sample, stretch, batch);
  if (options_.mask_documents) batch.cu_seqlens.push_back(static_cast<std::int64_t>(batch.tokens.size()));
  return batch;
}

// `stretch` is scratch for the seq_len + 1 tokens of the sample.
void TrainingData::append(const SampleId& sample, std::vector<std::int64_t>& stretch, Batch& batch) const {
  const IndexedDataset& set = set_of(sample);
  const std::int64_t length = options_.seq_len, first = sample.index * length;
  const auto base = static_cast<std::int64_t>(batch.tokens.size());
  set.read(first, length + 1, stretch.data());
  for (std::int64_t i = 0; i <= length; ++i)
    if (const std::int64_t token = stretch[static_cast<std::size_t>(i)]; token < 0 || token >= options_.vocab_size)
      throw Error("data set '{}': token {} of the stream is {}, expected 0 to {}: the file has changed", set.prefix(),
                  first + i, token, options_.vocab_size - 1);
  batch.tokens.insert(batch.tokens.end(), stretch.begin(), stretch.end() - 1);
  batch.targets.insert(batch.targets.end(), stretch.begin() + 1, stretch.end());
  batch.loss_tokens += length;
  std::vector<std::int64_t> starts{0};  // document starts in this sample
  if (options_.mask_documents) {
    for (const std::int64_t at : set.document_starts(first + 1, first + length + 1)) {
      batch.targets[static_cast<std::size_t>(base + at - first - 1)] = -1;
      --batch.loss_tokens;
      if (at - first < length) starts.push_back(at - first);
    }
    for (const std::int64_t start : starts) batch.cu_seqlens.push_back(base + start);
  }
  starts.push_back(length);
  for (std::size_t d = 0; d + 1 < starts.size(); ++d)
    for (std::int64_t i = starts[d]; i < starts[d + 1]; ++i) batch.positions.push_back(i - starts[d]);
}

std::int64_t TrainingData::loss_tokens(const SampleId& sample) const {
  if (!options_.mask_documents) return options_.seq_len;
  const std::int64_t first = sample.index * options_.seq_len;
  const auto starts = set_of(sample).document_starts(first + 1, first + options_.seq_len + 1);
  return options_.seq_len - static_cast<std::int64_t>(starts.size());
}

std::int64_t TrainingData::step_loss_tokens(const BatchShape& shape, std::int64_t step) const {
  if (!options_.mask_documents) return shape.global_batch * options_.seq_len;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < shape.global_batch; ++i) sum += loss_tokens(sample((step - 1) * shape.global_batch + i));
  return sum;
}

}  // namespace tessera::data
