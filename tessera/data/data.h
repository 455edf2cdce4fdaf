// The data of a run: data sets, their blend, the order of samples, and batches.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/data/blend.h"
#include "tessera/data/indexed_dataset.h"
#include "tessera/data/sampler.h"

namespace tessera::data {

struct TrainingDataOptions {
  std::vector<std::string> blend;  // as TrainConfig::data
  std::string flag = "--data";     // name of the blend in error messages
  std::int64_t seq_len = 0;
  std::int64_t vocab_size = 0;
  std::uint64_t seed = 0;
  bool mask_documents = false;
  // Whether the weights determine how often each set is read. False for held-out data: samples are read in file order,
  // and any weight above 0 is valid.
  bool uses_weights = true;
  // The value state.data of the checkpoint from which the run resumes. The run keeps the order of samples of this
  // checkpoint. Null for a new run.
  nlohmann::json stored = {};
};

struct SampleId {
  std::int64_t set = 0, index = 0;
  bool operator==(const SampleId&) const = default;
};

// A batch of n samples: n * seq_len tokens, one sample after another.
struct Batch {
  std::vector<std::int64_t> tokens, targets, positions;
  // With mask_documents: the boundaries of documents for attention in [0, n * seq_len]. The boundaries are ascending
  // and include both ends and every multiple of seq_len. Without mask_documents: empty, because each sequence is one
  // document.
  std::vector<std::int64_t> cu_seqlens;
  std::int64_t loss_tokens = 0;  // targets that are not masked (-1)
};

// Immutable after construction. Several threads may call const members at once; the ranks of backend `local` share one
// object.
class TrainingData {
 public:
  // Opens and checks every set. Throws InputError as parse_blend and IndexedDataset do, and for a set with fewer than
  // seq_len + 1 tokens. Does not read token values; check_vocabulary reads them before the first step.
  explicit TrainingData(const TrainingDataOptions& options);

  // Throws InputError as IndexedDataset::check_vocabulary does. The check can be divided into `parts` calls; each call
  // checks one part.
  void check_vocabulary(std::int64_t part = 0, std::int64_t parts = 1) const;
  // Throws InputError if no sample has a target that counts. This happens only with mask_documents, if every document
  // is a single token. A mean loss over this data does not exist.
  void check_targets() const;

  std::int64_t num_tokens() const;   // of all sets
  std::int64_t num_samples() const;  // number of samples of all sets in one epoch
  const std::vector<IndexedDataset>& sets() const { return sets_; }

  const BlendOrder& order() const { return order_; }
  // Returns a warning if the run keeps the shares of its checkpoint and these shares are far from the weights.
  // Otherwise returns an empty string.
  std::string note() const;

  // Returns a description of this data that does not contain paths: the share, sequences, tokens and index hash of each
  // set. Checkpoints store the fingerprint, and require_same_data compares it.
  nlohmann::json fingerprint() const;

  // Return the sample at a position of the training order (counted over all steps), and the samples of a block in
  // order.
  SampleId sample(std::int64_t position) const;
  std::vector<SampleId> samples_of(const BatchShape& shape, const Block& block) const;
  // Returns sample i of num_samples() in file order, set after set. Used for evaluation.
  SampleId sample_in_order(std::int64_t i) const;

  // Reads the samples and returns them as a batch. With mask_documents, positions restart at 0 at each document start,
  // and a target that is the first token of the next document is -1. Throws Error if a token is not a valid id of the
  // vocabulary.
  Batch assemble(const std::vector<SampleId>& samples) const;

  // Return the number of targets that are not masked, for one sample and for the global batch of a step. Neither
  // function reads tokens. The loss of a step is divided by step_loss_tokens(), which is 0 only if every document of
  // the batch is a single token.
  std::int64_t loss_tokens(const SampleId& sample) const;
  std::int64_t step_loss_tokens(const BatchShape& shape, std::int64_t step) const;

 private:
  const IndexedDataset& set_of(const SampleId& sample) const;
  void append(const SampleId& sample, std::vector<std::int64_t>& stretch, Batch& batch) const;

  TrainingDataOptions options_;
  std::vector<IndexedDataset> sets_;
  BlendOrder order_;
};

}  // namespace tessera::data
