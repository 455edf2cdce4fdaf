// Fuzzes the readers of files of tensors, token files, checkpoints, Hugging Face folders and tokenizers.
#include <gtest/gtest.h>

#include "tessera/checkpoint/hash.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/indexed_dataset.h"
#include "tessera/hub/convert/hf_folder.h"
#include "tessera/hub/inspect/inspect_checkpoint.h"
#include "tessera/hub/inspect/inspect_data.h"
#include "tessera/hub/stored_run.h"
#include "tessera/hub/tokenizer/python_tokenizer.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"
#include "tessera/hub/tokenizer/tokenizer_warnings.h"
#include "tessera/models/registry.h"
#include "tests/data/dataset_writer.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/fuzzing.h"

namespace tessera::fuzz {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Writes zeros.
void write_safetensors(const fs::path& path, const std::vector<checkpoint::SafetensorsTensor>& tensors) {
  fs::remove(path);
  checkpoint::SafetensorsWriter writer(path, tensors);
  for (const checkpoint::SafetensorsTensor& tensor : tensors) {
    std::int64_t bytes = static_cast<std::int64_t>(quant::size_of(tensor.dtype));
    for (const std::int64_t dim : tensor.dims) bytes *= dim;
    const std::string zeros(static_cast<std::size_t>(bytes), '\0');
    writer.write(zeros.data(), bytes);
  }
  writer.finish();
}

TEST(Fuzz, Safetensors) {
  const base::TempFolder folder;
  const fs::path file = folder / "a.safetensors";
  write_safetensors(file, {{"a", quant::DType::fp32, {2, 3}},
                           {"b.weight", quant::DType::bf16, {4}},
                           {"scalar", quant::DType::i64, {}},
                           {"empty", quant::DType::u8, {0, 5}}});
  const std::string good = base::read_text(file);
  fuzz({.name = "safetensors",
        .seeds = {good},
        .mutate = mutated_safetensors,
        .read = [&](const std::string&) { const checkpoint::SafetensorsFile opened(file); },
        .write = [&](const std::string& text) { write_file(file, text); }});
}

TEST(Fuzz, Indexes) {
  const base::TempFolder folder;
  const std::string prefix = (folder / "d").string();
  {
    data::IndexedDatasetWriter writer(prefix, data::TokenType::u16);
    for (std::int64_t document = 0; document < 3; ++document) {
      writer.add_sequence({1, 2, 3});
      if (document == 1) writer.add_sequence({});
      writer.add_sequence({document, 5});
      writer.end_document();
    }
    writer.finish();
  }
  fuzz({.name = "idx",
        .seeds = {base::read_text(prefix + ".idx")},
        .mutate = [](const std::string& text, Random& random) { return mutated_fields(text, 17, 1, random); },
        .read =
            [&](const std::string&) {
              const data::IndexedDataset set(prefix);
              set.check_vocabulary(1000);
              std::vector<std::int64_t> tokens(static_cast<std::size_t>(set.num_tokens()));
              set.read(0, set.num_tokens(), tokens.data());
              set.document_starts(0, set.num_tokens());
            },
        .write = [&](const std::string& text) { write_file(prefix + ".idx", text); }});
}

// A checkpoint of the small Llama, which holds only its weights.
struct StoredModel {
  explicit StoredModel(const fs::path& path) : folder(path) {
    const models::ModelConfigPtr model = models::parse_model_config(json::parse(model_configs()[0]), "f");
    std::vector<checkpoint::SafetensorsTensor> tensors;
    manifest = {.step = 3, .state = {{"model", model->to_json()}}, .files = {}, .tensors = {}};
    for (const models::LogicalTensor& tensor : logical_tensors(model->hf_tensors())) {
      const layout::Shape shape = layout::matrix_shape(tensor.dims);
      tensors.push_back({checkpoint::piece_key(checkpoint::Kind::weight, tensor.name, 0),
                         quant::DType::fp32,
                         {shape.rows, shape.cols}});
      manifest.tensors.push_back({tensor.name,
                                  checkpoint::Kind::weight,
                                  quant::DType::fp32,
                                  tensor.dims,
                                  {{0, 0, {0, shape.rows, 0, shape.cols}}}});
    }
    write_safetensors(folder / "part-00000.safetensors", tensors);
    const std::string bytes = base::read_text(folder / "part-00000.safetensors");
    manifest.files.push_back({"part-00000.safetensors", static_cast<std::int64_t>(bytes.size()),
                              checkpoint::hash_of(bytes.data(), bytes.size())});
  }
  // Writes the manifest with its checksum.
  void write(const std::string& text) const {
    write_file(folder / checkpoint::kManifestFile, text);
    write_file(folder / checkpoint::kManifestChecksumFile, checkpoint::hash_of(text.data(), text.size()) + "\n");
  }
  fs::path folder;
  checkpoint::Manifest manifest;
};

TEST(Fuzz, Manifests) {
  const base::TempFolder folder;
  const StoredModel stored(folder.path());
  checkpoint::Manifest sharded = stored.manifest;  // a tensor in four pieces, with delayed scaling
  sharded.files.push_back(sharded.files.front());
  sharded.files.back().name = "part-00001.safetensors";
  sharded.tensors.front().pieces.clear();
  for (const std::int64_t row : {0, 100})
    for (const std::int64_t col : {0, 16})
      sharded.tensors.front().pieces.push_back({col / 16, row / 100, {row, row == 0 ? 100 : 31, col, 16}});
  sharded.state["delayed_scaling"] = {{"values", {1, 2}}, {"matrices", {"a"}}, {"greatest", {448}},
                                      {"history", 16},    {"margin", 0},       {"newest", true}};
  fuzz({.name = "manifests",
        .seeds = {checkpoint::to_text(stored.manifest), checkpoint::to_text(sharded)},
        .mutate = mutated_json,
        .read = [](const std::string& text) {
          checkpoint::validate(checkpoint::parse_manifest(text, "manifest"), "manifest");
        }});
}

TEST(Fuzz, Checkpoints) {
  const base::TempFolder folder;
  const StoredModel stored(folder.path());
  fuzz({.name = "checkpoints",
        .seeds = {checkpoint::to_text(stored.manifest)},
        .mutate = mutated_json,
        .read =
            [&](const std::string&) {
              const checkpoint::CheckpointReader reader(folder.path());
              hub::stored_state_of(reader);
              hub::model_of_checkpoint(reader);
              hub::inspect_checkpoint(folder.path());
            },
        .write = [&](const std::string& text) { stored.write(text); }});
}

// A Hugging Face folder whose files are joined by lines. Mutations change one file of it.
class HfFiles {
 public:
  explicit HfFiles(const fs::path& folder, const std::string& config) : folder_(folder) {
    const models::ModelConfigPtr model = models::parse_model_config(json::parse(config), "f");
    std::vector<checkpoint::SafetensorsTensor> tensors;
    json map;
    for (const models::HfTensor& tensor : model->hf_tensors()) {
      tensors.push_back({tensor.hf_name, quant::DType::bf16, tensor.dims});
      map[tensor.hf_name] = "model-00001-of-00001.safetensors";
    }
    write_safetensors(folder_ / "model-00001-of-00001.safetensors", tensors);
    files_ = {{"config.json", config},
              {"model.safetensors.index.json", json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump()},
              {"model-00001-of-00001.safetensors", base::read_text(folder_ / "model-00001-of-00001.safetensors")}};
    for (const auto& [name, text] : files_) write_file(folder_ / name, text);
  }
  // The seeds begin with the name of the file.
  std::vector<std::string> seeds() const {
    std::vector<std::string> all;
    for (const auto& [name, text] : files_) all.push_back(name + "\n" + text);
    return all;
  }
  void write(const std::string& input) {
    if (!changed_.empty()) write_file(folder_ / changed_, files_.at(changed_));
    changed_ = input.substr(0, input.find('\n'));
    write_file(folder_ / changed_, input.substr(changed_.size() + 1));
  }

 private:
  fs::path folder_;
  std::map<std::string, std::string> files_;
  std::string changed_;
};

std::string mutated_file(const std::string& input, Random& random) {
  const std::size_t begin = input.find('\n') + 1;
  const std::string name = input.substr(0, begin), text = input.substr(begin);
  return name + (name.ends_with(".safetensors\n") ? mutated_safetensors(text, random) : mutated_json(text, random));
}

TEST(Fuzz, HuggingFaceFolders) {
  const base::TempFolder folder;
  const std::vector<std::string> configs = model_configs();
  for (const std::size_t model : {std::size_t{0}, std::size_t{4}}) {  // without and with experts
    HfFiles files(folder.path(), configs[model]);
    fuzz({.name = "Hugging Face folders",
          .seeds = files.seeds(),
          .mutate = mutated_file,
          .read = [&](const std::string&) { const hub::HfFolder opened(folder.path()); },
          .write = [&](const std::string& input) { files.write(input); }});
  }
}

constexpr const char* kTokenizer = R"({"version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 3, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true},
                   {"id": 4, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})";

std::vector<std::string> tokenizer_files() {
  return {std::string("tokenizer.json\n") + kTokenizer,
          std::string("tokenizer_config.json\n") +
              R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}, "tokenizer_class": "X"})",
          std::string("generation_config.json\n") + R"({"bos_token_id": 4, "eos_token_id": [3, 7]})",
          std::string("config.json\n") + R"({"bos_token_id": 4, "eos_token_id": 3})"};
}

TEST(Fuzz, TokenizerFiles) {
  const base::TempFolder folder;
  fs::create_directory(folder / "other");
  write_file(folder / "other/tokenizer.json", kTokenizer);
  std::string changed;
  const auto write = [&](const std::string& input) {
    if (!changed.empty()) fs::remove(folder / changed);
    changed = input.substr(0, input.find('\n'));
    for (const std::string& file : tokenizer_files()) {
      const std::string name = file.substr(0, file.find('\n'));
      if (name == "tokenizer.json" || name == "tokenizer_config.json")
        write_file(folder / name, file.substr(name.size() + 1));
    }
    write_file(folder / changed, input.substr(changed.size() + 1));
  };
  fuzz({.name = "files of tokenizers",
        .seeds = tokenizer_files(),
        .mutate = mutated_file,
        .read =
            [&](const std::string&) {
              hub::have_other_vocabularies(folder.path(), folder / "other");
              hub::generation_config(hub::text_tokens_of(folder.path()));
            },
        .write = write});
}

// The Python package reads tokenizer.json. Each input starts a process, so there are few inputs.
TEST(Fuzz, TokenizersOfThePythonPackage) {
  const base::TempFolder folder;
  const fs::path file = folder / "tokenizer.json";
  write_file(file, kTokenizer);
  const hub::PythonTokenizer tokenizer(file, hub::pythons_to_try(std::nullopt, TESSERA_OWN_PYTHON));
  if (!tokenizer.encode("ab")) GTEST_SKIP() << "no Python has the package tokenizers";
  json panics = json::parse(kTokenizer);
  panics["model"]["continuing_subword_prefix"] = "longer";  // than the second part of a merge
  write_file(file, panics.dump());
  EXPECT_THROW(tokenizer.encode("ab"), InputError);
  Random random(1);
  const std::size_t count = std::min<std::size_t>(inputs_to_read(3), 1000);
  for (std::size_t number = 0; number < count; ++number) {
    const std::string text = mutated_json(kTokenizer, random);
    write_file(file, text);
    try {
      tokenizer.encode("ab a");
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "input " << number << ": " << error.what() << "\n  " << text.substr(0, 500);
    }
  }
}

}  // namespace
}  // namespace tessera::fuzz
