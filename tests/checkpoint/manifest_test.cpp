#include "tessera/checkpoint/manifest.h"

#include "tessera/base/text/printable.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using quant::DType;

Manifest sample() {
  const std::string checksum(32, 'a');
  return {.step = 20,
          .state = {{"lr", 0.1}, {"nested", {{"x", {1, 2}}}}},
          .files = {{"part-00000.safetensors", 100, checksum}, {"part-00001.safetensors", 200, checksum}},
          .tensors = {{"a.weight", Kind::weight, DType::bf16, {4, 6}, {{0, 0, {0, 4, 0, 3}}, {1, 0, {0, 4, 3, 3}}}},
                      {"a.weight", Kind("exp_avg"), DType::fp32, {4, 6}, {{1, 0, {0, 4, 0, 6}}}},
                      {"n.weight", Kind::weight, DType::fp64, {5}, {{0, 0, {0, 1, 0, 5}}}}}};
}

void check(const std::string& text) {
  validate(parse_manifest(text, "M"), "M");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  if (at == std::string::npos) throw Error("the test looks for '{}', which is not there", from);
  return text.replace(at, from.size(), to);
}

TEST(CheckpointManifest, TextReadsBackEqual) {
  const std::string text = to_text(sample());
  check(text);
  const Manifest back = parse_manifest(text, "M");
  EXPECT_EQ(to_text(back), text);
  EXPECT_EQ(back.state, sample().state);
  EXPECT_EQ(back.tensors[0].pieces[1].box, (layout::Box{0, 4, 3, 3}));
  EXPECT_EQ(back.tensors[1].kind, Kind("exp_avg"));
}

TEST(CheckpointManifest, RefusesARepeatedPiece) {
  Manifest manifest = sample();
  manifest.tensors[0].pieces[1].file = 0;
  EXPECT_NE(input_error([&] { validate(manifest, "M"); }).find("piece 0 of file 0 is listed twice"), std::string::npos);
}

TEST(CheckpointManifest, RefusesDeepNestingAndShowsTheBeginningOfValues) {
  const std::string good = to_text(sample()), deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string from : {"0.1", "20", "100", "[4, 6]", "0, 0, 0, 4, 0, 3"})
    if (good.find(from) != std::string::npos)
      EXPECT_NE(input_error([&] { check(replaced(good, from, deep)); }).find("M: nests more than 100 levels"),
                std::string::npos);
  std::string zeros = "0";
  for (int i = 0; i < 10'000; ++i) zeros += ",0";
  EXPECT_LT(input_error([&] { check(replaced(good, "\"pieces\":[", "\"pieces\":[[" + zeros + "],")); }).size(), 300u);
}

TEST(CheckpointManifest, ErrorsQuoteTextInPrintableCharacters) {
  const std::string good = to_text(sample());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"tessera-checkpoint", "a\\u001b"},
                                                                                 {"part-00001.", "/\\n"},
                                                                                 {"aaaa", "\\n"},
                                                                                 {"exp_avg", "\\t"},
                                                                                 {"bf16", "\\u0007"},
                                                                                 {"lr", "\xff"}}) {
    const std::string message = input_error([&, f = from, t = to] { check(replaced(good, f, t)); });
    EXPECT_EQ(message, base::printable(message)) << message;
    EXPECT_NE(message.find("\\x"), std::string::npos) << message;
  }
  const TemporaryFolder folder;
  save_manifest(folder.path(), sample());
  spill(folder / std::string(kManifestChecksumFile), "\xff\x1b[2J\n");
  const std::string message = input_error([&] { load_manifest(folder.path()); });
  EXPECT_NE(message.find("contains '\\xff\\x1b[2J'"), std::string::npos) << message;
}

TEST(CheckpointManifest, EachWrongFieldIsNamed) {
  struct Case {
    const char *from, *to, *said;
  };
  const std::string too_long(256, 'a');
  for (const Case& c :
       std::initializer_list<Case>{{"tessera-checkpoint", "other", "format"},
                                   {"\"version\": 1", "\"version\": 2", "version"},
                                   {"\"version\": 1", "\"version\": \"1\"", "version"},
                                   {"\"step\": 20", "\"step\": -1", "step"},
                                   {"\"step\": 20", "\"stop\": 20", "'step' is missing"},
                                   {"\"step\": 20", "\"step\": 20, \"step\": 21", "twice"},
                                   {"\"state\"", "\"stat\"", "'state' is missing"},
                                   {"part-00001", "../part-00001", "not the name of a file"},
                                   {"part-00001", "a\\nb", "'a\\x0ab.safetensors' is not the name of a file"},
                                   {"part-00001", "a\\u007f", "'a\\x7f.safetensors' is not the name of a file"},
                                   {"part-00001", too_long.c_str(), "not the name of a file"},
                                   {"part-00001", "part-00000", "listed twice"},
                                   {"\"bytes\":100", "\"bytes\":1e2", "bytes"},
                                   {"aaaa", "AAAA", "xxh3_128"},
                                   {"\"kind\":\"exp_avg\"", "\"kind\":\"exp/avg\"", "kind"},
                                   {"\"kind\":\"exp_avg\"", "\"kind\":\"\"", "kind"},
                                   {"\"kind\":\"exp_avg\"", "\"kind\":\"weight\"", "'a.weight'"},
                                   {"\"bf16\"", "\"bf17\"", "bf17"},
                                   {"[4,6]", "[4,7]", "cover"},
                                   {"[4,6]", "[4,5]", "not inside"},
                                   {"[4,6]", "[4611686018427387904,6]", "shape"},
                                   {"[0,0,0,4,0,3]", "[0,0,0,4,0]", "pieces"},
                                   {"[0,0,0,4,0,3]", "[2,0,0,4,0,3]", "got file index 2, expected below 2"},
                                   {"[0,0,0,4,0,3]", "[0,0,0,3,0,3]", "cover 21 of 24"},
                                   {"[0,0,0,4,0,3]", "[0,0,0,4,0,4]", "overlap"},
                                   {"\"pieces\":[[1", "\"piece\":[[1", "'pieces' is missing"}}) {
    const std::string message = input_error([&] { check(replaced(to_text(sample()), c.from, c.to)); });
    EXPECT_NE(message.find(c.said), std::string::npos) << c.from << " -> " << c.to << ": " << message;
    EXPECT_TRUE(message.starts_with('M')) << message;
  }
}

TEST(CheckpointManifest, ChangedBytesCauseAtMostAnInputError) {
  const std::string text = to_text(sample());
  Random random(11);
  const std::string alphabet = "{}[]\":,0123456789-.eEx \\n\xff\n";
  int refused = 0;
  constexpr int rounds = 5000;
  for (int round = 0; round < rounds; ++round) {
    std::string changed = text;
    for (std::int64_t i = pick(random, 1, 3); i > 0; --i) {
      const auto at = static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(changed.size()) - 1));
      changed[at] = alphabet[static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(alphabet.size()) - 1))];
    }
    if (pick(random, 0, 20) == 0) changed.resize(static_cast<std::size_t>(pick(random, 0, 200)));
    try {
      check(changed);
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, rounds / 2);
}

TEST(CheckpointManifest, PartsMergeAndDifferentDescriptionsAreRefused) {
  Manifest left{.step = 3,
                .state = {{"a", 1}},
                .files = {{"f0", 1, ""}},
                .tensors = {{"w", Kind::weight, DType::fp32, {4}, {{0, 0, {0, 1, 0, 1}}}}}};
  Manifest right{.step = 3,
                 .state = {},
                 .files = {{"f1", 1, ""}},
                 .tensors = {{"w", Kind::weight, DType::fp32, {4}, {{0, 0, {0, 1, 1, 3}}}}}};
  const Manifest whole = merge({left, Manifest{}, right});
  ASSERT_EQ(whole.tensors.size(), 1u);
  EXPECT_EQ(whole.tensors[0].pieces[1].file, 1);
  EXPECT_EQ(whole.step, 3);
  validate(whole, "M");
  right.tensors[0].dtype = DType::bf16;
  EXPECT_THROW(merge({left, right}), Error);
}

TEST(CheckpointManifest, TheChecksumDetectsAChangedFile) {
  const TemporaryFolder folder;
  save_manifest(folder.path(), sample());
  EXPECT_EQ(load_manifest(folder.path()).step, 20);
  spill(folder / "manifest.json", replaced(slurp(folder / "manifest.json"), "\"step\": 20", "\"step\": 21"));
  EXPECT_NE(input_error([&] { load_manifest(folder.path()); }).find("damaged"), std::string::npos);
  fs::remove(folder / "manifest.xxh3");
  EXPECT_NE(input_error([&] { load_manifest(folder.path()); }).find("manifest.xxh3"), std::string::npos);
}

}  // namespace
}  // namespace tessera::checkpoint
