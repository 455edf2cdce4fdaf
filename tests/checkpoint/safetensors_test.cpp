#include "tessera/checkpoint/safetensors.h"

#include <cstring>
#include <numeric>

#include "tessera/base/text/printable.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using quant::DType;

std::string with_header(const std::string& header, std::size_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i));
  return text + header + std::string(data_bytes, 'x');
}

// Returns the error message for a file with this content.
std::string fault(const std::string& content) {
  const TemporaryFolder folder;
  spill(folder / "f.safetensors", content);
  std::string message = input_error([&] { SafetensorsFile file(folder / "f.safetensors"); });
  EXPECT_NE(message.find("f.safetensors"), std::string::npos) << message;
  return message;
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.safetensors";
  SafetensorsWriter writer(path, {{"b", DType::fp32, {2, 3}}, {"empty", DType::bf16, {0, 7}}, {"a", DType::u8, {5}}});
  std::vector<unsigned char> bytes(29);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(1));
  writer.write(bytes.data(), 10);
  writer.write(bytes.data() + 10, 19);
  const WrittenFile written = writer.finish();
  EXPECT_EQ(written.bytes, static_cast<std::int64_t>(fs::file_size(path)));
  EXPECT_EQ(written.checksum, hash_file(path));

  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.entry("b").dtype, "F32");
  EXPECT_EQ(file.entry("b").dims, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.entry("b").offset % 8, 0);
  EXPECT_EQ(file.entry("empty").bytes, 0);
  std::vector<unsigned char> got(5);
  file.file().read(file.entry("a").offset, got.data(), 5);
  EXPECT_EQ(got, (std::vector<unsigned char>{25, 26, 27, 28, 29}));
  EXPECT_NE(slurp(path).find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
}

TEST(Safetensors, EveryTypeHasAName) {
  for (const DType type : {DType::u8, DType::i32, DType::i64, DType::bf16, DType::fp32, DType::fp64})
    EXPECT_EQ(from_safetensors_name(safetensors_name(type)), type);
  EXPECT_EQ(from_safetensors_name("F16"), std::nullopt);
}

TEST(Safetensors, WriterRefusesAWrongNumberOfBytesAndRepeatedNames) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"t", DType::fp32, {2}}});
  writer.write("1234", 4);
  EXPECT_THROW(writer.finish(), Error);
  EXPECT_THROW(SafetensorsWriter(folder / "b", {{"t", DType::u8, {1}}, {"t", DType::u8, {1}}}), Error);
}

TEST(Safetensors, RefusesIncompleteFiles) {
  EXPECT_NE(fault("1234").find("got 4 bytes"), std::string::npos);
  EXPECT_NE(fault(with_header("{}", 0).substr(0, 9)).find("length"), std::string::npos);
  EXPECT_NE(fault(std::string(16, '\xff')).find("length"), std::string::npos);
  const std::string header = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_NE(fault(with_header(header, 7)).find("8 bytes"), std::string::npos);
  EXPECT_NE(fault(with_header(header, 9)).find("holds 9"), std::string::npos);
}

TEST(Safetensors, RefusesMalformedHeadersAndNamesTheTensor) {
  const auto tensor = [](const std::string& body, std::size_t bytes = 8) {
    return fault(with_header("{\"t\":" + body + "}", bytes));
  };
  EXPECT_NE(fault(with_header("[1]", 0)).find("object"), std::string::npos);
  EXPECT_NE(fault(with_header("{\"a\":", 0)).find("JSON"), std::string::npos);
  for (const char* body :
       {R"(7)", R"({})", R"({"dtype":"F32","shape":[2]})", R"({"dtype":3,"shape":[2],"data_offsets":[0,8]})",
        R"({"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})",
        R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]})"})
    EXPECT_NE(tensor(body).find("tensor 't'"), std::string::npos) << body;
}

TEST(Safetensors, RefusesGapsOverlapsAndRepeatedNames) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto b = [](int from, int to) {
    return R"("b":{"dtype":"U8","shape":[4],"data_offsets":[)" + std::to_string(from) + "," + std::to_string(to) + "]}";
  };
  EXPECT_NE(fault(with_header("{" + a + "," + b(5, 9) + "}", 9)).find("'b'"), std::string::npos);
  EXPECT_NE(fault(with_header("{" + a + "," + b(3, 7) + "}", 7)).find("'b'"), std::string::npos);
  EXPECT_NE(fault(with_header("{" + a + "," + a + "}", 4)).find("twice"), std::string::npos);
}

TEST(Safetensors, ErrorsQuoteTheHeaderInPrintableCharacters) {
  const std::string rest = R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::vector<std::string> headers{
      "{\"a\xff" + rest,                           // not UTF-8
      "\x80\xfe",                                  // also not JSON
      "{\"a\\n\\u001b[2J\":{\"dtype\":\"F32\"}}",  // control characters, as JSON escapes them
      "{\"a\":{\"dtype\":\"F\\n32\"}}",
      "{\"a\\n\":1,\"a\\n\":1}",
      std::string("{\"a\\n") + R"(":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})"};
  for (const std::string& header : headers) {
    const std::string message = fault(with_header(header, 12));
    EXPECT_EQ(message, base::printable(message));
    EXPECT_NE(message.find('\\'), std::string::npos) << message;
  }
}

TEST(Safetensors, RefusesHeadersThatNestDeeply) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string message =
      fault(with_header(R"({"a":{"dtype":"F32","shape":)" + deep + R"(,"data_offsets":[0,8]}})", 8));
  EXPECT_NE(message.find("header: nests more than 100 levels"), std::string::npos) << message;
}

// A shape may have any number of dimensions.
TEST(Safetensors, ErrorsShowTheFirstDimensions) {
  std::string dims = "3";
  for (int i = 0; i < 10'000; ++i) dims += ",1";
  const std::string message =
      fault(with_header(R"({"a":{"dtype":"F32","shape":[)" + dims + R"(],"data_offsets":[0,8]}})", 8));
  EXPECT_NE(message.find("F32 of shape [3, 1, 1, 1, 1, 1, 1, 1, ...] has 12 bytes"), std::string::npos) << message;
}

TEST(Safetensors, ChangedHeaderBytesCauseAtMostAnInputError) {
  const TemporaryFolder folder;
  const fs::path good = folder / "good", bad = folder / "bad";
  SafetensorsWriter writer(good, {{"x", DType::fp32, {3, 5}}, {"y", DType::bf16, {7}}, {"z", DType::i64, {2, 1, 2}}});
  const std::string data(60 + 14 + 32, 'd');
  writer.write(data.data(), static_cast<std::int64_t>(data.size()));
  writer.finish();
  const std::string text = slurp(good);
  const auto header = static_cast<std::int64_t>(text.size() - data.size());
  Random random(7);
  const std::string alphabet = "{}[]\":,0123456789-.eEx \\u\xff";
  int refused = 0;
  constexpr int rounds = 1500;
  for (int round = 0; round < rounds; ++round) {
    std::string changed = text;
    for (std::int64_t i = pick(random, 1, 4); i > 0; --i) {
      const auto at = static_cast<std::size_t>(pick(random, 0, header - 1));
      const auto letter =
          alphabet[static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(alphabet.size()) - 1))];
      if (pick(random, 0, 9) > 0) {
        changed[at] = letter;
      } else if (pick(random, 0, 1)) {
        changed.erase(at, static_cast<std::size_t>(pick(random, 1, 20)));
      } else {
        changed.insert(at, 1, letter);
      }
    }
    spill(bad, changed);
    try {
      const SafetensorsFile file(bad);
      for (const auto& [name, entry] : file.entries()) ASSERT_LE(entry.offset + entry.bytes, file.file().size());
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, rounds / 2);
}

}  // namespace
}  // namespace tessera::checkpoint
