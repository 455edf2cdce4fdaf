// Tests incomplete or modified Hugging Face folders in number formats. Each gives one clear error, without a crash.
#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using namespace testing;
using nlohmann::json;
using quant::DType;
using quant::Format;

using Entries = std::vector<checkpoint::SafetensorsTensor>;

constexpr const char* kMatrix = "model.layers.1.mlp.gate_proj.weight";

class HfFormatFaults : public ::testing::TestWithParam<Format> {
 protected:
  void make(std::int64_t max_shard_bytes = 1 << 30) {
    models::DecoderConfig config = odd_llama(false);
    config.intermediate_size = 34;
    write_llama(root_ / "c", config, DType::bf16);
    convert(root_ / "c", folder(), {.format = GetParam(), .max_shard_bytes = max_shard_bytes});
  }
  fs::path folder() const { return root_ / "hf"; }
  // Returns the error of the folder after a change of its only safetensors file, and then undoes the change.
  std::string fault(const std::function<void(Entries&, std::map<std::string, std::string>&)>& change) const {
    const fs::path path = folder() / "model.safetensors";
    const std::string before = slurp(path);
    std::map<std::string, std::string> bytes = tensor_bytes(folder());
    Entries entries = read_entries(path);
    change(entries, bytes);
    fs::remove(path);
    checkpoint::SafetensorsWriter writer(path, entries);
    for (const checkpoint::SafetensorsTensor& entry : entries)
      writer.write(bytes[entry.name].data(), static_cast<std::int64_t>(bytes[entry.name].size()));
    writer.finish();
    std::string message = input_error([&] { HfFolder opened(folder()); });
    spill(path, before);
    return message;
  }
  std::string fault_of(const std::string& name,
                       const std::function<void(checkpoint::SafetensorsTensor&, std::string&)>& change) const {
    return fault([&](Entries& entries, std::map<std::string, std::string>& bytes) {
      const auto found =
          std::ranges::find_if(entries, [&](const checkpoint::SafetensorsTensor& entry) { return entry.name == name; });
      ASSERT_NE(found, entries.end()) << name;
      change(*found, bytes[name]);
    });
  }
  // Returns the names of the tensors with the scales of the matrix.
  static std::vector<std::string> scales() {
    if (GetParam() == Format::fp8_block) return {std::string(kMatrix) + "_scale_inv"};
    if (GetParam() == Format::nvfp4) return {std::string(kMatrix) + "_scale", std::string(kMatrix) + "_scale_2"};
    return {std::string(kMatrix) + "_scale"};
  }

  TemporaryFolder root_;

 private:
  static Entries read_entries(const fs::path& path) {
    Entries entries;
    const checkpoint::SafetensorsFile file(path);
    for (const auto& [name, entry] : file.entries()) {
      const bool is_e4m3 = entry.dtype == "F8_E4M3";
      const DType type = is_e4m3 ? DType::u8 : *checkpoint::from_safetensors_name(entry.dtype);
      entries.push_back({name, type, entry.dims, is_e4m3 ? "F8_E4M3" : ""});
    }
    return entries;
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, HfFormatFaults,
                         ::testing::Values(Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

void expect_says(const std::string& message, const std::string& text) {
  EXPECT_NE(message.find(text), std::string::npos) << "expected: " << text << "\ngot: " << message;
}

TEST_P(HfFormatFaults, AMissingScaleIsNamed) {
  make();
  for (const std::string& name : scales()) {
    const std::string message = fault([&](Entries& entries, auto&) {
      std::erase_if(entries, [&](const checkpoint::SafetensorsTensor& entry) { return entry.name == name; });
    });
    expect_says(message, "'" + name + "'");
  }
  expect_says(fault([](Entries& entries, auto&) {
                std::erase_if(entries,
                              [](const checkpoint::SafetensorsTensor& entry) { return entry.name == kMatrix; });
              }),
              "'" + std::string(kMatrix) + "' is missing");
}

TEST_P(HfFormatFaults, AnotherShapeIsNamedWithTheExpectedOne) {
  make();
  for (const std::string& name : scales())
    expect_says(fault_of(name,
                         [](checkpoint::SafetensorsTensor& entry, std::string& bytes) {
                           entry.dims.insert(entry.dims.begin(), 2);
                           bytes += bytes;
                         }),
                "'" + name + "': expected [");
  expect_says(fault_of(kMatrix, [](checkpoint::SafetensorsTensor& entry,
                                   std::string&) { std::swap(entry.dims[0], entry.dims[1]); }),
              "'" + std::string(kMatrix) + "': expected [");
}

// All bytes set: a NaN in each type of scales.
TEST_P(HfFormatFaults, AScaleThatIsNotANumberIsNamedOnReading) {
  make();
  for (const std::string& name : scales()) {
    const fs::path path = folder() / "model.safetensors";
    const std::string before = slurp(path);
    const checkpoint::SafetensorsEntry entry = checkpoint::SafetensorsFile(path).entry(name);
    std::string bytes = before;
    const std::size_t element = entry.dtype == "F32" ? 4 : 1;
    bytes.replace(static_cast<std::size_t>(entry.offset), element, element, '\xFF');
    spill(path, bytes);
    const std::string message = input_error([&] { convert(folder(), root_ / "back"); });
    expect_says(message, kMatrix);
    expect_says(message, "scale of ");
    EXPECT_FALSE(fs::exists(root_ / "back"));
    spill(path, before);
  }
}

TEST_P(HfFormatFaults, AnotherTypeIsNamedWithTheExpectedOne) {
  make();
  for (const std::string& name : scales())
    expect_says(fault_of(name,
                         [](checkpoint::SafetensorsTensor& entry, std::string& bytes) {
                           entry.stored_as = "";
                           entry.dtype = DType::i32;
                           std::int64_t elements = 1;
                           for (const std::int64_t extent : entry.dims) elements *= extent;
                           bytes.assign(static_cast<std::size_t>(4 * elements), '\1');
                         }),
                "'" + name + "': expected ");
}

TEST_P(HfFormatFaults, EightBitNumbersInOtherTensorsAreRefused) {
  make();
  const std::string message =
      fault_of("model.norm.weight", [](checkpoint::SafetensorsTensor& entry, std::string& bytes) {
        entry.dtype = DType::u8;
        entry.stored_as = "F8_E4M3";
        bytes.resize(bytes.size() / 2);
      });
  expect_says(message, "'model.norm.weight' is F8_E4M3");
}

// Reads the whole content of a folder.
void read_all(const fs::path& path) {
  const HfFolder folder(path);
  for (const HfTensor& tensor : folder.config().hf_tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.box.elements()));
    folder.read(tensor.hf_name, 0, tensor.box.elements(), DType::fp32, values.data());
  }
}

// Changes bytes, mostly in the first `front` bytes.
std::string changed_text(std::string text, Random& random, std::int64_t front) {
  const std::string alphabet = "{}[]\":,0123456789-.eEx \\u\xff";
  for (std::int64_t i = pick(random, 1, 4); i > 0 && !text.empty(); --i) {
    const auto size = static_cast<std::int64_t>(text.size());
    const std::int64_t end = pick(random, 0, 9) > 0 ? std::min(front, size) : size;
    const auto at = static_cast<std::size_t>(pick(random, 0, end - 1));
    const auto letter = alphabet[static_cast<std::size_t>(pick(random, 0, std::ssize(alphabet) - 1))];
    const std::int64_t kind = pick(random, 0, 19);
    if (kind > 1)
      text[at] = letter;
    else if (kind == 1)
      text.erase(at, static_cast<std::size_t>(pick(random, 1, 20)));
    else
      text.insert(at, 1, letter);
  }
  return text;
}

TEST_P(HfFormatFaults, ChangedBytesCauseAtMostAnInputError) {
  make(12000);  // shards with an index
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder())) files.push_back(entry.path());
  std::ranges::sort(files);
  ASSERT_GE(files.size(), 4u);
  Random random(11);
  int refused = 0;
  constexpr int rounds = 400;
  for (int round = 0; round < rounds; ++round) {
    const fs::path& path = files[static_cast<std::size_t>(pick(random, 0, std::ssize(files) - 1))];
    const std::string before = slurp(path);
    spill(path, changed_text(before, random, path.extension() == ".safetensors" ? 1500 : 1 << 20));
    try {
      read_all(folder());
    } catch (const InputError&) {
      ++refused;
    }
    spill(path, before);
  }
  EXPECT_GT(refused, rounds / 2);
  EXPECT_LT(refused, rounds);
  read_all(folder());
}

}  // namespace
}  // namespace tessera::hub
