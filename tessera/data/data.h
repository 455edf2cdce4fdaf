// The data of a run: data sets, their blend and order, and batches made of them.
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
  std::vector<std::string> blend;  // of TrainConfig::data
  std::string flag = "--data";     // names the blend in errors
  std::int64_t seq_len = 0;
  std::int64_t vocab_size = 0;
  std::uint64_t seed = 0;
  bool mask_documents = false;
  // Whether sets take turns by their weights. Held-out data is read in order instead: any weight above 0 will do.
  bool takes_turns = true;
  // state.data of the checkpoint that the run resumes, whose order of samples it keeps; null: a new run.
  nlohmann::json stored = {};
};

struct SampleId {
  std::int64_t set = 0, index = 0;
  bool operator==(const SampleId&) const = default;
};

// Of n samples: n * seq_len tokens, sample after sample.
struct Batch {
  std::vector<std::int64_t> tokens, targets, positions;
  // With mask_documents: starts of attention's documents in [0, n * seq_len], first and last included, every multiple
  // of seq_len among them. Without: empty, a sequence is one document.
  std::vector<std::int64_t> cu_seqlens;
  std::int64_t loss_tokens = 0;  // targets that are not masked (-1)
};

// Immutable after construction; const members may be called by several threads at once (the ranks of `local` share
// one).
class TrainingData {
 public:
  // Opens and checks every set. InputErrors: those of parse_blend and IndexedDataset, and a set that holds fewer than
  // seq_len + 1 tokens. Token values are not read: check_vocabulary does that, before the first step.
  explicit TrainingData(const TrainingDataOptions& options);

  // InputError as IndexedDataset::check_vocabulary; the work may be shared out as part `part` of `parts`.
  void check_vocabulary(std::int64_t part = 0, std::int64_t parts = 1) const;

  std::int64_t num_tokens() const;   // of all sets
  std::int64_t num_samples() const;  // of all sets in one epoch each
  const std::vector<IndexedDataset>& sets() const { return sets_; }

  const BlendOrder& order() const { return order_; }
  // A line about shares that a checkpoint holds and that are far from the weights; empty: they are not.
  std::string note() const;

  // What tells this data from other data, independent of paths: by set its share, sequences, tokens, and a hash of the
  // index. Stored in checkpoints, compared by require_same_data.
  nlohmann::json fingerprint() const;

  // The sample at a position of training's order (counted over all steps), and those of a block, in order.
  SampleId sample(std::int64_t position) const;
  std::vector<SampleId> samples_of(const BatchShape& shape, const Block& block) const;
  // The i-th of num_samples() samples in file order, set after set: for evaluation.
  SampleId sample_in_order(std::int64_t i) const;

  // With mask_documents, positions restart at 0 where a document begins, and the target that is the first token of the
  // next document is -1. Error when a token is no id of the vocabulary.
  Batch assemble(const std::vector<SampleId>& samples) const;

  // Targets that are not masked, without reading tokens: of one sample, and of a step's whole global batch, which is
  // what the loss is divided by. The latter can be 0 only where every document of the batch is a single token.
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
