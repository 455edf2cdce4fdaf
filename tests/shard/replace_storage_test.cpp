// Tests that the planes of a weight move into a flat buffer of the caller and keep their contents.
#include "tessera/shard/replace_storage.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/quant/formats/format.h"
#include "tessera/shard/make_parameter.h"

namespace tessera::shard {
namespace {

using quant::Format;

// dims: rows and columns, or the number of matrices of a stack, and rows and columns of one of them.
ShardedParameter make_weight(Format format, const std::vector<std::int64_t>& dims, int gtp_rank) {
  const std::int64_t rows = dims.size() == 3 ? dims[0] * dims[1] : dims[0];
  ParameterSpec spec{.name = "weight", .dims = dims, .compute = layout::replicated({rows, dims.back()}, 1)};
  if (format != Format::bf16) spec.encoding = quant::weight_encoding(format);
  ShardedParameter parameter =
      make_parameter(std::move(spec), {.model = quant::DType::bf16}, {.parts = 3}, {.part = gtp_rank});
  for (Plane& plane : parameter.planes)
    for (std::size_t i = 0; i < plane.data.size(); ++i)
      plane.data.data()[i] = static_cast<std::byte>(i * 7 + plane.spec.name.size());
  return parameter;
}

std::vector<std::vector<std::byte>> contents(const ShardedParameter& parameter) {
  std::vector<std::vector<std::byte>> planes;
  for (const Plane& plane : parameter.planes)
    planes.emplace_back(plane.data.data(), plane.data.data() + plane.data.size());
  return planes;
}

std::string fault_of(ShardedParameter& parameter, const FlatMemory& memory) {
  try {
    replace_storage(parameter, memory);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class ReplaceStorage : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, ReplaceStorage,
                         testing::Values(Format::bf16, Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(ReplaceStorage, KeepsTheBytesOfSeveralWeightsInOneBuffer) {
  for (const int rank : {0, 1, 2}) {
    std::vector<ShardedParameter> weights;
    for (const std::vector<std::int64_t>& dims : std::initializer_list<std::vector<std::int64_t>>{
             {300, 288}, {7, 80}, {50, 16}, {7, 20, 34}, {2, 3, 16}})  // some ranks have no rows
      weights.push_back(make_weight(GetParam(), dims, rank));
    std::size_t bytes = 0;
    for (const ShardedParameter& weight : weights) bytes += storage_bytes(weight);
    base::Buffer flat(bytes);
    std::memset(flat.data(), 0xA5, bytes);
    std::byte* next = flat.data();
    for (ShardedParameter& weight : weights) {
      const auto before = contents(weight);
      replace_storage(weight, {.data = next, .bytes = storage_bytes(weight)});
      EXPECT_EQ(contents(weight), before);
      for (const Plane& plane : weight.planes) {
        EXPECT_EQ(plane.data.size(), static_cast<std::size_t>(plane.bytes(plane.local_storage.size)));
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plane.data.data()) % base::kAlignment, 0u);
        if (plane.data.size() == 0) continue;
        EXPECT_GE(plane.data.data(), next);
        EXPECT_LE(plane.data.data() + plane.data.size(), next + storage_bytes(weight));
      }
      next += storage_bytes(weight);
    }
    ShardedParameter& first = weights.front();
    if (storage_bytes(first) == 0) continue;
    first.weight().data()[0] ^= std::byte{0xFF};
    EXPECT_EQ(flat.data()[0], first.weight().data()[0]);
  }
}

TEST_P(ReplaceStorage, RefusesUnsuitableMemoryAndChangesNothing) {
  ShardedParameter weight = make_weight(GetParam(), {300, 288}, 0);
  const auto before = contents(weight);
  const std::byte* place = weight.weight().data();
  const std::size_t bytes = storage_bytes(weight);
  base::Buffer flat(bytes + 512);
  const auto refuses = [&](const FlatMemory& memory, const std::string& text) {
    const std::string fault = fault_of(weight, memory);
    EXPECT_NE(fault.find(text), std::string::npos) << fault;
    EXPECT_EQ(weight.weight().data(), place);
    EXPECT_EQ(contents(weight), before);
  };
  refuses({flat.data(), bytes - 1}, fmt::format("{} bytes for its storage, expected {} or more", bytes - 1, bytes));
  refuses({flat.data(), bytes, base::cuda_device(0)}, "memory of cuda:0 for its storage, expected memory of cpu");
  refuses({flat.data() + 128, bytes}, "expected an address that is a multiple of 256");
  refuses({nullptr, bytes}, "no memory");
  refuses({weight.weight().data(), bytes}, "is already in the memory that it moves to");
  EXPECT_EQ(fault_of(weight, {flat.data(), bytes}), "");
  place = flat.data();
  refuses({flat.data() + 256, bytes}, "is already in the memory that it moves to");
}

}  // namespace
}  // namespace tessera::shard
