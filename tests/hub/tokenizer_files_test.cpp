// Tests the files of a tokenizer, and the tokens that begin and end a text.
#include "tessera/hub/tokenizer/tokenizer_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tests/base/files.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int64_t>;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}
std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

constexpr const char* kTokenizer =
    R"({"added_tokens": [{"id": 7, "content": "</s>"}, {"id": 9, "content": "<s>"}], "model": {}})";

TEST(TokenizerFolder, IsThatOfTheCheckpointOrOfItsRun) {
  const base::TempFolder folder;
  const fs::path checkpoint = folder / "run/checkpoints/step-00000003";
  write(checkpoint / "manifest.json", "{}");
  EXPECT_EQ(tokenizer_of(checkpoint), "");
  write(folder / "run/tokenizer/tokenizer.json", "{}");
  EXPECT_TRUE(fs::equivalent(tokenizer_of(checkpoint), folder / "run/tokenizer"));
  EXPECT_TRUE(fs::equivalent(tokenizer_of((checkpoint / ".").string()), folder / "run/tokenizer"));
  write(checkpoint / "tokenizer/tokenizer.json", "{}");
  EXPECT_TRUE(fs::equivalent(tokenizer_of(checkpoint), checkpoint / "tokenizer"));
  write(folder / "hf/tokenizer.model", "");
  EXPECT_TRUE(fs::equivalent(tokenizer_of(folder / "hf"), folder / "hf"));
}

TEST(TokenizerFolder, OfDataIsBesideTheFirstPrefixThatHasOne) {
  const base::TempFolder folder;
  for (const char* set : {"a/train", "b/train"}) write(folder / (std::string(set) + ".idx"), "");
  const std::vector<std::string> blend{"0.5", (folder / "a/train").string(), "0.5", (folder / "b/train").string()};
  EXPECT_EQ(tokenizer_of_data(blend), "");
  write(folder / "b/tokenizer.json", "{}");
  EXPECT_EQ(tokenizer_of_data(blend), folder / "b");
  write(folder / "a/tokenizer.json", "{}");
  EXPECT_EQ(tokenizer_of_data(blend), folder / "a");
}

TEST(TextTokens, ComeFromTheFirstFileThatNamesTheEnd) {
  const base::TempFolder folder;
  const auto expect = [&](std::optional<std::int64_t> begin, const Ids& end) {
    const TextTokens tokens = text_tokens_of(folder / "f");
    EXPECT_EQ(tokens.begin, begin);
    EXPECT_EQ(tokens.end, end);
  };
  fs::create_directories(folder / "f");
  expect(std::nullopt, {});
  write(folder / "f/tokenizer.json", kTokenizer);
  expect(std::nullopt, {});
  write(folder / "f/tokenizer_config.json", R"({"eos_token": {"content": "</s>"}, "bos_token": "<s>"})");
  expect(9, {7});
  write(folder / "f/tokenizer_config.json", R"({"eos_token": "absent", "bos_token": null})");
  expect(std::nullopt, {});
  write(folder / "f/config.json", R"({"eos_token_id": 4})");
  expect(std::nullopt, {4});
  write(folder / "f/generation_config.json", R"({"bos_token_id": 2})");
  expect(std::nullopt, {4});
  write(folder / "f/generation_config.json", R"({"bos_token_id": 2, "eos_token_id": [5, 6]})");
  expect(2, {5, 6});
  for (const char* wrong : {R"({"eos_token_id": "5"})", R"({"eos_token_id": [5, 1.5]})", "[1]", "{"}) {
    write(folder / "f/generation_config.json", wrong);
    EXPECT_NE(base::refusal([&] { text_tokens_of(folder / "f"); }).find("generation_config.json"), std::string::npos);
  }
}

TEST(CopiedTokenizer, HasEveryFileAndNamesTheEndOfAText) {
  const base::TempFolder folder;
  write(folder / "from/tokenizer.json", kTokenizer);
  write(folder / "from/tokenizer_config.json", R"({"eos_token": "</s>"})");
  write(folder / "from/chat_template.jinja", "{{ x }}");
  write(folder / "from/model.safetensors", "weights");
  copy_tokenizer(folder / "from", folder / "to/tokenizer");
  const std::set<std::string> expected{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                       "generation_config.json"};
  EXPECT_EQ(names_in(folder / "to/tokenizer"), expected);
  EXPECT_EQ(base::read_json_file(folder / "to/tokenizer/generation_config.json"),
            (nlohmann::json{{"bos_token_id", nullptr}, {"eos_token_id", 7}}));
  EXPECT_EQ(base::read_json_file(folder / "to/tokenizer/tokenizer.json"), nlohmann::json::parse(kTokenizer));
  // A copy of the copy has the same bytes.
  copy_tokenizer(folder / "to/tokenizer", folder / "again");
  for (const std::string& name : expected)
    EXPECT_EQ(base::read_text(folder / "again" / name), base::read_text(folder / "to/tokenizer" / name)) << name;
}

TEST(CopiedTokenizer, OfATokenizerFileAloneNamesItsClass) {
  const base::TempFolder folder;
  write(folder / "from/tokenizer.json", kTokenizer);
  copy_tokenizer(folder / "from", folder / "to");
  EXPECT_EQ(names_in(folder / "to"), (std::set<std::string>{"tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(base::read_json_file(folder / "to/tokenizer_config.json"),
            (nlohmann::json{{"tokenizer_class", "PreTrainedTokenizerFast"}}));
}

}  // namespace
}  // namespace tessera::hub
