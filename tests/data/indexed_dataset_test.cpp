#include "tessera/data/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "tests/base/files.h"
#include "tests/data/dataset_writer.h"

namespace tessera::data {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Tokens = std::vector<std::int64_t>;

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);  // writing a new file is faster than truncating and rewriting one
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename T>
std::string raw(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

// An index and its tokens, written byte by byte without the writer. The order of the sequences in the .bin file
// differs.
struct Files {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  std::uint8_t type = 8;
  std::uint64_t sequences = 3, bounds = 3;
  std::string lengths = raw<std::int32_t>({2, 3, 1});
  std::string offsets = raw<std::int64_t>({8, 2, 0});
  std::string documents = raw<std::int64_t>({0, 2, 3});
  std::string tokens = raw<std::uint16_t>({60, 30, 40, 50, 10, 20});

  std::string index() const {
    return magic + raw({version}) + raw({type}) + raw({sequences, bounds}) + lengths + offsets + documents;
  }
  std::string write(const base::TempFolder& folder) const {
    write_bytes(folder / "d.idx", index());
    write_bytes(folder / "d.bin", tokens);
    return (folder / "d").string();
  }
};

Tokens read_all(const IndexedDataset& data) {
  Tokens tokens(static_cast<std::size_t>(data.num_tokens()));
  data.read(0, data.num_tokens(), tokens.data());
  return tokens;
}

TEST(IndexedDataset, ReadsSequencesInTheOrderOfTheIndex) {
  const base::TempFolder folder;
  const IndexedDataset data(Files{}.write(folder));
  EXPECT_EQ(data.num_tokens(), 6);
  EXPECT_EQ(data.num_sequences(), 3);
  EXPECT_EQ(data.num_documents(), 2);
  EXPECT_EQ(data.token_type(), TokenType::u16);
  EXPECT_THAT(read_all(data), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_THAT(data.document_starts(0, 6), ElementsAre(0, 5));
  EXPECT_THAT(data.document_starts(1, 5), IsEmpty());
}

TEST(IndexedDataset, TheWriterMakesTheFormatByteForByte) {
  const base::TempFolder folder;
  const std::string prefix = (folder / "w").string();
  IndexedDatasetWriter writer(prefix, TokenType::u16);
  writer.add_sequence({1, 2});
  writer.add_sequence({});
  writer.end_document();
  writer.add_sequence({65535});
  writer.finish();
  const Files expected{.lengths = raw<std::int32_t>({2, 0, 1}), .offsets = raw<std::int64_t>({0, 4, 4})};
  EXPECT_EQ(base::read_text(prefix + ".idx"), expected.index());
  EXPECT_EQ(base::read_text(prefix + ".bin"), raw<std::uint16_t>({1, 2, 65535}));
}

class EveryTokenType : public ::testing::TestWithParam<TokenType> {};

TEST_P(EveryTokenType, RoundTrips) {
  const base::TempFolder folder;
  const std::string prefix = (folder / "t").string();
  IndexedDatasetWriter writer(prefix, GetParam());
  writer.add_sequence({5, 127, 0});
  writer.add_sequence({1});
  writer.finish();
  const IndexedDataset data(prefix);
  EXPECT_EQ(data.token_type(), GetParam());
  EXPECT_EQ(std::filesystem::file_size(prefix + ".bin"), 4 * size_of(GetParam()));
  EXPECT_THAT(read_all(data), ElementsAre(5, 127, 0, 1));
  EXPECT_NO_THROW(data.check_vocabulary(128));
  const auto bytes = std::to_string(size_of(GetParam()));
  EXPECT_THAT(base::refusal([&] { data.check_vocabulary(127); }), HasSubstr("token at byte " + bytes + " is 127"));
}

INSTANTIATE_TEST_SUITE_P(Codes, EveryTokenType,
                         ::testing::Values(TokenType::u8, TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64,
                                           TokenType::f64, TokenType::f32, TokenType::u16));

TEST(IndexedDataset, RefusesTokensThatAreNotIds) {
  const base::TempFolder folder;
  struct Case {
    TokenType type;
    std::string tokens;
    const char* shown;
  };
  const std::vector<Case> cases{{TokenType::i8, raw<std::int8_t>({1, -3}), "-3"},
                                {TokenType::i16, raw<std::int16_t>({1, -300}), "-300"},
                                {TokenType::i32, raw<std::int32_t>({1, -70000}), "-70000"},
                                {TokenType::i64, raw<std::int64_t>({1, std::int64_t{1} << 40}), "1099511627776"},
                                {TokenType::i64, raw<std::int64_t>({1, -1}), "-1"},
                                {TokenType::f32, raw<float>({1, 2.5f}), "2.5"},
                                {TokenType::f64, raw<double>({1, -1.0}), "-1"},
                                {TokenType::f64, raw<double>({1, NAN}), "nan"},
                                {TokenType::f64, raw<double>({1, 1e300}), "1e+300"}};
  for (const Case& c : cases) {
    const auto item = static_cast<std::int64_t>(size_of(c.type));
    const Files files{.type = static_cast<std::uint8_t>(c.type),
                      .sequences = 1,
                      .bounds = 2,
                      .lengths = raw<std::int32_t>({2}),
                      .offsets = raw<std::int64_t>({0}),
                      .documents = raw<std::int64_t>({0, 1}),
                      .tokens = c.tokens};
    const IndexedDataset data(files.write(folder));
    const std::string message = base::refusal([&] { data.check_vocabulary(1000); });
    EXPECT_THAT(message, HasSubstr("d.bin"));
    EXPECT_THAT(message, HasSubstr(fmt::format("byte {} is {}", item, c.shown)));
    EXPECT_NO_THROW(data.check_vocabulary(1000, 0, 2));  // the first half has only valid tokens
    EXPECT_THAT([&] { data.check_vocabulary(1000, 1, 2); },
                ThrowsMessage<InputError>(HasSubstr(fmt::format("byte {} is {}", item, c.shown))));
  }
}

TEST(IndexedDataset, PartsOfTheVocabularyCheckCoverEveryToken) {
  const base::TempFolder folder;
  const std::string prefix = (folder / "t").string();
  for (std::int64_t bad = 0; bad < 11; ++bad) {
    IndexedDatasetWriter writer(prefix, TokenType::u8);
    Tokens tokens(11, 3);
    tokens[static_cast<std::size_t>(bad)] = 200;
    writer.add_sequence({tokens.begin(), tokens.begin() + 4});
    writer.add_sequence({tokens.begin() + 4, tokens.end()});
    writer.finish();
    const IndexedDataset data(prefix);
    int refused = 0;
    for (int part = 0; part < 4; ++part) {
      try {
        data.check_vocabulary(200, part, 4);
      } catch (const InputError&) {
        ++refused;
      }
    }
    EXPECT_EQ(refused, 1) << bad;
  }
}

struct BadFiles {
  const char* what;
  std::function<void(Files&)> spoil;
  std::vector<std::string> named;
};
class BadIndexedDataset : public ::testing::TestWithParam<BadFiles> {};

TEST_P(BadIndexedDataset, IsRefusedByFileAndReason) {
  const base::TempFolder folder;
  Files files;
  GetParam().spoil(files);
  const std::string prefix = files.write(folder);
  const std::string message = base::refusal([&] { IndexedDataset data(prefix); });
  for (const std::string& name : GetParam().named) EXPECT_THAT(message, HasSubstr(name)) << GetParam().what;
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadIndexedDataset,
    ::testing::Values(
        BadFiles{"magic", [](Files& f) { f.magic[0] = 'X'; }, {"d.idx", "MMIDIDX"}},
        BadFiles{"version", [](Files& f) { f.version = 2; }, {"d.idx", "version is 2", "expected 1"}},
        BadFiles{"type 0", [](Files& f) { f.type = 0; }, {"d.idx", "code is 0"}},
        BadFiles{"type 9", [](Files& f) { f.type = 9; }, {"d.idx", "code is 9"}},
        BadFiles{"sequences", [](Files& f) { f.sequences = 4; }, {"d.idx", "4 sequences"}},
        BadFiles{"huge counts", [](Files& f) { f.sequences = ~std::uint64_t{0} / 12; }, {"d.idx", "sequences"}},
        BadFiles{"huge bounds", [](Files& f) { f.bounds = std::uint64_t{1} << 61; }, {"d.idx", "bounds"}},
        BadFiles{"more bytes", [](Files& f) { f.documents += "x"; }, {"d.idx", "bytes"}},
        BadFiles{"no bounds",
                 [](Files& f) {
                   f.bounds = 0;
                   f.documents = "";
                 },
                 {"d.idx", "no document bounds"}},
        BadFiles{"first bound",
                 [](Files& f) {
                   f.documents = raw<std::int64_t>({1, 2, 3});
                 },
                 {"bound 0 is 1"}},
        BadFiles{"last bound",
                 [](Files& f) {
                   f.documents = raw<std::int64_t>({0, 2, 2});
                 },
                 {"last document bound is 2", "expected 3"}},
        BadFiles{"bounds fall",
                 [](Files& f) {
                   f.documents = raw<std::int64_t>({0, 4, 3});
                 },
                 {"bound 2 is 3", "at least 4"}},
        BadFiles{"negative length",
                 [](Files& f) {
                   f.lengths = raw<std::int32_t>({2, -3, 1});
                 },
                 {"length of sequence 1 is -3"}},
        BadFiles{"negative offset",
                 [](Files& f) {
                   f.offsets = raw<std::int64_t>({-2, 2, 0});
                 },
                 {"offset of sequence 0 is -2"}},
        BadFiles{"odd offset",
                 [](Files& f) {
                   f.offsets = raw<std::int64_t>({7, 2, 0});
                 },
                 {"offset of sequence 0 is 7", "multiple of 2"}},
        BadFiles{"offset beyond",
                 [](Files& f) {
                   f.offsets = raw<std::int64_t>({1000, 2, 0});
                 },
                 {"d.bin", "12 bytes", "1000"}},
        BadFiles{"huge offset",
                 [](Files& f) {
                   f.offsets = raw<std::int64_t>({INT64_MAX - 1, 2, 0});
                 },
                 {"d.bin", "12 bytes"}},
        BadFiles{"length beyond",
                 [](Files& f) {
                   f.lengths = raw<std::int32_t>({3, 3, 1});
                 },
                 {"d.bin", "12 bytes"}},
        BadFiles{"longer bin", [](Files& f) { f.tokens += "xx"; }, {"d.bin", "14 bytes", "12"}},
        BadFiles{"foreign index",
                 [](Files& f) { f.magic = "PK\3\4 some other file of any length without an index"; },
                 {"d.idx"}}));

TEST(IndexedDataset, RefusesEveryTruncationOfTheIndex) {
  const base::TempFolder folder;
  const Files files;
  const std::string prefix = files.write(folder), whole = files.index();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_bytes(prefix + ".idx", whole.substr(0, size));
    EXPECT_THAT(base::refusal([&] { IndexedDataset data(prefix); }), HasSubstr("d.idx")) << size;
  }
}

TEST(IndexedDataset, RefusesEveryTruncationOfTheTokens) {
  const base::TempFolder folder;
  const Files files;
  const std::string prefix = files.write(folder);
  for (std::size_t size = 0; size < files.tokens.size(); ++size) {
    write_bytes(prefix + ".bin", files.tokens.substr(0, size));
    EXPECT_THAT(base::refusal([&] { IndexedDataset data(prefix); }), HasSubstr("d.bin")) << size;
  }
}

TEST(IndexedDataset, RefusesMissingAndOddFiles) {
  const base::TempFolder folder;
  const std::string prefix = Files{}.write(folder);
  EXPECT_THAT(base::refusal([&] { IndexedDataset data(prefix + ".idx"); }), HasSubstr("without .idx"));
  EXPECT_THAT(base::refusal([&] { IndexedDataset data(prefix + ".bin"); }), HasSubstr("without .bin"));
  std::filesystem::remove(prefix + ".bin");
  EXPECT_THAT(base::refusal([&] { IndexedDataset data(prefix); }), HasSubstr("d.bin"));
  std::filesystem::create_directory(prefix + ".bin");
  EXPECT_THAT(base::refusal([&] { IndexedDataset data(prefix); }), HasSubstr("d.bin"));
  std::filesystem::remove(prefix + ".idx");
  EXPECT_THAT(base::refusal([&] { IndexedDataset data(prefix); }), HasSubstr("d.idx"));
}

// Random damage: the file is refused, or reads stay inside its memory (run under the sanitizers).
TEST(IndexedDataset, SurvivesRandomDamage) {
  const base::TempFolder folder;
  const Files files;
  const std::string prefix = files.write(folder), whole = files.index();
  std::mt19937_64 random(1);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    const bool all = round % 10 == 0;  // random from end to end
    const std::size_t changes = all ? bytes.size() : 1 + random() % 3;
    for (std::size_t i = 0; i < changes; ++i) bytes[all ? i : random() % bytes.size()] = static_cast<char>(random());
    write_bytes(prefix + ".idx", bytes);
    try {
      const IndexedDataset data(prefix);
      read_all(data);
      data.document_starts(0, data.num_tokens());
      ++accepted;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(accepted, 0);  // a changed length that still fits is a valid file
}

// Compares with a dense reference: random documents of random sequences, some of them empty, enough to cross the
// strides.
TEST(IndexedDataset, ReadsAnyRangeAndItsDocuments) {
  const base::TempFolder folder;
  const std::string prefix = (folder / "r").string();
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    Tokens stream, starts;
    IndexedDatasetWriter writer(prefix, TokenType::i32);
    const int documents = 1 + static_cast<int>(random() % 150);
    for (int d = 0; d < documents; ++d) {
      const auto begin = static_cast<std::int64_t>(stream.size());
      for (std::uint64_t s = random() % 4; s > 0; --s) {
        Tokens sequence(random() % 3 == 0 ? 0 : random() % 9);
        for (auto& token : sequence) token = static_cast<std::int64_t>(random() % 100000);
        stream.insert(stream.end(), sequence.begin(), sequence.end());
        writer.add_sequence(sequence);
      }
      writer.end_document();
      if (static_cast<std::int64_t>(stream.size()) > begin) starts.push_back(begin);
    }
    writer.finish();
    const IndexedDataset data(prefix);
    const auto total = static_cast<std::int64_t>(stream.size());
    ASSERT_EQ(data.num_tokens(), total);
    for (int probe = 0; probe < 300; ++probe) {
      const auto first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(total + 1));
      const auto last = first + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(total - first + 1));
      Tokens got(static_cast<std::size_t>(last - first));
      data.read(first, last - first, got.data());
      ASSERT_EQ(got, Tokens(stream.begin() + first, stream.begin() + last));
      Tokens expected;
      for (const std::int64_t start : starts)
        if (start >= first && start < last) expected.push_back(start);
      ASSERT_EQ(data.document_starts(first, last), expected) << first << " to " << last;
    }
  }
}

TEST(IndexedDataset, RefusesARangeOutsideTheStream) {
  const base::TempFolder folder;
  const IndexedDataset data(Files{}.write(folder));
  Tokens room(10);
  EXPECT_THAT([&] { data.read(0, 7, room.data()); }, ThrowsMessage<Error>(HasSubstr("7 tokens from 0 of")));
  EXPECT_THAT([&] { data.read(-1, 2, room.data()); }, ThrowsMessage<Error>(HasSubstr("2 tokens from -1 of")));
  EXPECT_THAT([&] { data.read(7, 0, room.data()); }, ThrowsMessage<Error>(HasSubstr("0 tokens from 7 of")));
  EXPECT_THAT([&] { data.read(3, INT64_MAX, room.data()); },
              ThrowsMessage<Error>(HasSubstr("9223372036854775807 tokens from 3 of")));
  EXPECT_NO_THROW(data.read(6, 0, room.data()));
  EXPECT_THAT([&] { data.document_starts(2, 7); }, ThrowsMessage<Error>(HasSubstr("tokens [2, 7) of")));
}

TEST(IndexedDataset, AnEmptySetHasNoTokens) {
  const base::TempFolder folder;
  const std::string prefix = (folder / "e").string();
  IndexedDatasetWriter(prefix, TokenType::u16).finish();
  const IndexedDataset data(prefix);
  EXPECT_EQ(data.num_tokens(), 0);
  EXPECT_EQ(data.num_documents(), 0);
  EXPECT_THAT(data.document_starts(0, 0), IsEmpty());
  EXPECT_NO_THROW(data.check_vocabulary(1));
}

}  // namespace
}  // namespace tessera::data
