// Tests the warnings of a model and data sets whose token ids have different meanings, and the stored begin tokens.
#include "tessera/hub/tokenizer/tokenizer_warnings.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tests/base/files.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Ids = std::vector<std::int64_t>;

// Folders of data sets `train` with tokenizers: a and same have one vocabulary, other has another one.
class Warnings : public ::testing::Test {
 protected:
  Warnings() {
    write(folder_ / "a/tokenizer.json", R"({"model": {"vocab": {"x": 0, "y": 1}}, "version": "1"})");
    write(folder_ / "same/tokenizer.json", R"({"version": "2", "model": {"vocab": {"y": 1, "x": 0}}})");
    write(folder_ / "other/tokenizer.json", R"({"model": {"vocab": {"x": 1, "y": 0}}})");
    write(folder_ / "damaged/tokenizer.json", "{");
    for (const char* name : {"a", "same", "other", "damaged", "none"}) write(folder_ / name / "train.idx", "");
  }
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string data(const char* name) const { return folder_ / name / "train"; }
  std::vector<std::string> of_model(const char* tokenizer, const std::vector<FlagData>& sets,
                                    BeginIds begin = {}) const {
    const fs::path stored = *tokenizer == 0 ? fs::path() : fs::path(folder_ / tokenizer);
    return tokenizer_warnings(sets, {.name = "m", .vocab_size = 2, .tokenizer = stored, .begin = std::move(begin)});
  }
  void store_begin(const char* name, const char* ids) {
    write(folder_ / name / "meta.json", std::string(R"({"begin_ids": )") + ids + "}");
  }
  base::TempFolder folder_;
};

TEST_F(Warnings, CompareVocabularies) {
  EXPECT_FALSE(have_other_vocabularies(folder_ / "a", folder_ / "same"));
  EXPECT_TRUE(have_other_vocabularies(folder_ / "a", folder_ / "other"));
  EXPECT_FALSE(have_other_vocabularies(folder_ / "a", folder_ / "damaged"));
  EXPECT_FALSE(have_other_vocabularies(folder_ / "a", folder_ / "none"));
}

TEST_F(Warnings, NameDataOfAnotherTokenizerThanThatOfTheModel) {
  EXPECT_THAT(of_model("a", {{"--data", {data("same")}}, {"--valid", {data("a")}}}), IsEmpty());
  EXPECT_THAT(of_model("a", {{"--data", {data("damaged")}}, {"--valid", {data("none")}}}), IsEmpty());
  EXPECT_THAT(of_model("a", {{"--data", {data("a")}}, {"--valid", {data("other")}}}),
              ElementsAre("the tokenizer beside --valid differs from that of the model: " +
                          (folder_ / "other").string() + " and " + (folder_ / "a").string() +
                          " have other vocabularies, so the model reads other words than it was trained on"));
  EXPECT_THAT(of_model("a", {{"--data", {"0.5", data("other"), "0.5", data("a")}}}),
              ElementsAre(StartsWith("the tokenizer beside --data differs from that of the model: ")));
}

TEST_F(Warnings, NameTwoDataSetsOfDifferentTokenizers) {
  EXPECT_THAT(of_model("", {{"--data", {"1", data("a"), "1", data("same")}}}), IsEmpty());
  EXPECT_THAT(
      of_model("", {{"--data", {"1", data("a"), "1", data("other"), "1", data("other")}}}),
      ElementsAre(StartsWith("the tokenizer beside --data differs from that beside --data " + data("a") + ": ")));
  EXPECT_THAT(of_model("", {{"--data", {data("a")}}, {"--valid", {data("other")}}}),
              ElementsAre(HasSubstr("--valid differs from that beside --data " + data("a"))));
  EXPECT_THAT(of_model("", {{"--data", {data("none")}}, {"--valid", {data("other")}}}), IsEmpty());
}

TEST_F(Warnings, NameAModelOfAnotherVocabulary) {
  const auto warnings = [&](std::int64_t vocab_size, const char* tokenizer) {
    write(folder_ / "sized/tokenizer.json", tokenizer);
    write(folder_ / "sized/train.idx", "");
    return tokenizer_warnings({{"--data", {data("sized")}}}, {.name = "m", .vocab_size = vocab_size, .tokenizer = {}});
  };
  const char* const eight = R"({"model": {"vocab": {"x": 0, "y": 6}}, "added_tokens": [{"id": 7, "content": "z"}]})";
  EXPECT_THAT(warnings(8, eight), IsEmpty());
  EXPECT_THAT(warnings(10, eight), IsEmpty());  // padded
  EXPECT_THAT(warnings(7, eight),
              ElementsAre("the model m has a vocabulary of 7, but the tokenizer " + (folder_ / "sized").string() +
                          " has 8 entries, so the model cannot read text with the ids 7 and above"));
  EXPECT_THAT(warnings(11, eight), ElementsAre(HasSubstr("has 8 entries, so the ids 8 and above have no text")));
  const char* const unigram = R"({"model": {"vocab": [["x", 0.0], ["y", -1.5], ["z", -2.0]]}})";
  EXPECT_THAT(warnings(3, unigram), IsEmpty());
  EXPECT_THAT(warnings(2, unigram), ElementsAre(HasSubstr("has 3 entries")));
  EXPECT_THAT(warnings(9, R"({"model": {}})"), IsEmpty());
  EXPECT_THAT(warnings(9, R"({"model": {"vocab": {"x": "wrong"}}})"), IsEmpty());
}

TEST_F(Warnings, NameDocumentsThatBeginWithOtherTokens) {
  store_begin("a", "[1]");
  store_begin("same", "[]");
  const std::vector<FlagData> sets{{"--data", {data("a")}}, {"--valid", {data("same")}}};
  const std::string text = "documents of --valid " + data("same") + " begin with the ids [], but those of ";
  EXPECT_THAT(of_model("", sets), ElementsAre(text + "--data " + data("a") + " with [1]"));
  EXPECT_THAT(of_model("", sets, Ids{1}), ElementsAre(text + "the training data of the model with [1]"));
  EXPECT_THAT(of_model("", {{"--data", {data("a")}}, {"--valid", {data("none")}}}, Ids{1}), IsEmpty());
}

TEST_F(Warnings, BeginIdsOfDataAreThoseOfEverySet) {
  store_begin("a", "[1, 5]");
  store_begin("same", "[1, 5]");
  store_begin("other", "[]");
  EXPECT_EQ(begin_ids_of_data({data("a")}), (Ids{1, 5}));
  EXPECT_EQ(begin_ids_of_data({"1", data("a"), "2", data("same")}), (Ids{1, 5}));
  EXPECT_EQ(begin_ids_of_data({data("other")}), Ids{});
  EXPECT_EQ(begin_ids_of_data({"1", data("a"), "2", data("other")}), std::nullopt);
  EXPECT_EQ(begin_ids_of_data({"1", data("a"), "2", data("none")}), std::nullopt);
  for (const char* foreign : {"[]", "{", R"({"begin": [1]})"}) {
    write(folder_ / "none/meta.json", foreign);
    EXPECT_EQ(begin_ids_beside(data("none")), std::nullopt);
  }
  for (const char* wrong : {"1", "[-1]", R"(["<s>"])", "null"}) {
    store_begin("none", wrong);
    EXPECT_THAT(base::refusal([&] { begin_ids_beside(data("none")); }), HasSubstr("meta.json: begin_ids: got "));
  }
}

}  // namespace
}  // namespace tessera::hub
