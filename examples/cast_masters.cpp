// Casts fp32 masters to nvfp4 and gathers the result. Four ranks divide a flat buffer of two weights, as an optimizer
// may do: a rank's slice begins and ends inside a row, a tile of scales or a byte. Every rank ends with the bytes of
// the whole weights. The scales are then padded and swizzled for a product on Blackwell. Ranks are threads.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/quant/formats/swizzle.h"
#include "tessera/shard/formats/quantized_gather.h"

namespace {

using namespace tessera;
using quant::Extent;

constexpr std::array<Extent, 2> kWeights{{{.rows = 50, .cols = 80}, {.rows = 33, .cols = 34}}};
// Rank r has the elements [kBorders[r], kBorders[r + 1]) of the flat buffer. Rank 1 has one element: half a byte.
constexpr std::array<std::int64_t, 5> kBorders{0, 1001, 1002, 4031, 5122};
const quant::Encoding kEncoding = quant::weight_encoding(quant::Format::nvfp4);

// A whole weight in nvfp4.
struct Codes {
  explicit Codes(Extent matrix)
      : data(static_cast<std::size_t>(quant::data_bytes(kEncoding.element, matrix.elements()))),
        scales(static_cast<std::size_t>(quant::scale_extent(kEncoding, matrix).elements())) {}
  quant::Quantized view() { return {.data = data.data(), .scales = scales.data(), .tensor_amax = &amax}; }
  bool operator==(const Codes&) const = default;
  std::vector<std::uint8_t> data, scales;
  float amax = 0;
};

std::vector<float> master_of(Extent matrix) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < matrix.elements(); ++i) values.push_back(std::sin(0.37F * static_cast<float>(i)));
  return values;
}

// Casts and gathers the weights on one rank.
std::vector<Codes> cast_weights(comm::Communicator& group) {
  const auto rank = static_cast<std::size_t>(group.rank());
  std::vector<Codes> codes(kWeights.begin(), kWeights.end());
  std::vector<std::vector<float>> masters;  // this rank's elements
  std::vector<shard::QuantizedWeight> weights;
  std::vector<shard::MasterShard> shards;
  std::int64_t first = 0;  // the weight's first element in the flat buffer
  for (std::size_t w = 0; w < kWeights.size(); ++w) {
    const std::int64_t size = kWeights[w].elements();
    const quant::Slice slice{.begin = std::clamp<std::int64_t>(kBorders[rank] - first, 0, size),
                             .end = std::clamp<std::int64_t>(kBorders[rank + 1] - first, 0, size)};
    const std::vector<float> whole = master_of(kWeights[w]);
    masters.emplace_back(whole.begin() + slice.begin, whole.begin() + slice.end);
    weights.push_back({.matrix = kWeights[w], .arrays = codes[w].view()});
    shards.push_back({.master = {.data = masters.back().data(), .type = quant::DType::fp32}, .elements = slice});
    first += size;
  }
  const auto lane = base::make_inline_lane();  // on a GPU: base::make_cuda_lane
  const auto cast = shard::cast_master_weights(weights, shards, group, quant::Format::nvfp4, *lane);
  const auto gather = shard::gather_quantized(weights, shards, group, quant::Format::nvfp4, *lane);
  lane->synchronize();  // after each later update: cast->run(group); gather->run(*lane);
  return codes;
}

// Returns the number of wrong scales in the swizzled array.
int swizzle(const Codes& codes, Extent matrix) {
  const Extent extent = quant::padded_scale_extent(kEncoding, matrix), tiles = quant::scale_extent(kEncoding, matrix);
  std::vector<std::uint8_t> padded(static_cast<std::size_t>(extent.elements())), swizzled(padded.size());
  quant::pad_scales(codes.scales.data(), matrix, kEncoding, padded.data());
  quant::swizzle_scales(padded.data(), matrix, kEncoding, swizzled.data());
  std::printf("%zu scales, %zu after padding and swizzling\n", codes.scales.size(), swizzled.size());
  int wrong = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t block = 0; block < tiles.cols; ++block)
      wrong +=
          swizzled.at(quant::swizzled_offset(row, block, tiles.cols)) != codes.scales.at(row / 16 * tiles.cols + block);
  return wrong;
}

}  // namespace

int main() {
  std::array<std::vector<Codes>, 4> by_rank;
  comm::run_local(4, {}, [&](comm::World& world) {
    const auto group = world.make_group("all", {{0, 1, 2, 3}});
    by_rank[static_cast<std::size_t>(world.rank())] = cast_weights(*group);
  });
  int wrong = 0;
  for (std::size_t w = 0; w < kWeights.size(); ++w) {
    Codes whole(kWeights[w]);
    const std::vector<float> master = master_of(kWeights[w]);
    quant::quantize({.data = master.data(), .type = quant::DType::fp32}, kWeights[w], kEncoding, whole.view());
    for (const std::vector<Codes>& codes : by_rank) wrong += codes[w] == whole ? 0 : 1;
    wrong += swizzle(by_rank[1][w], kWeights[w]);
  }
  std::printf("gathered by 4 ranks, %d differ\n", wrong);
  return wrong == 0 ? 0 : 1;
}
