// Warns of a model and data sets whose token ids have different meanings.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/hub/tokenizer/begin_ids.h"

namespace tessera::hub {

// Returns whether the vocabularies of two tokenizers differ. Returns false if one of them has no valid tokenizer.json.
bool have_other_vocabularies(const std::filesystem::path& one, const std::filesystem::path& other);

// The data sets of a flag.
struct FlagData {
  std::string flag;
  std::vector<std::string> blend;
};
// The model that reads the data.
struct ReadingModel {
  std::string name;
  std::int64_t vocab_size = 0;
  std::filesystem::path tokenizer;  // folder of the tokenizer stored with the weights; empty: none, or random weights
  BeginIds begin;                   // the begin tokens of the data on which the weights were trained
};
// Returns a warning for each difference:
// - between the tokenizer of a data set and that of the model. If the model has none, the first tokenizer beside a data
//   set takes its place.
// - between the numbers of entries of the tokenizer and of the model. The model may have some entries more, because
//   they are often padded.
// - between the begin tokens of a data set and those of the model, or else of the first data set that stores them.
// A tokenizer without a valid tokenizer.json is not compared.
std::vector<std::string> tokenizer_warnings(const std::vector<FlagData>& data, const ReadingModel& model);

}  // namespace tessera::hub
