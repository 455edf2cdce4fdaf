// Compares operands that a GPU quantizes by rows and by columns with the loops on the host, byte for byte.
#include <gtest/gtest.h>

#include "tessera/quant/formats/decoded.h"
#include "tessera/quant/formats/hadamard.h"
#include "tests/quant/on_device.h"
#include "tests/quant/values.h"

namespace tessera::quant {
namespace {

constexpr Encoding kNvfp4Rows{.element = Element::e2m1, .scale = Scale::e4m3, .tile = {1, 16}};
constexpr Encoding kNvfp4Squares{.element = Element::e2m1, .scale = Scale::e4m3, .tile = {16, 16}};
constexpr Encoding kMxfp8Rows{.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}};

// The results that a side writes.
struct WantedSide {
  bool decoded = true, stored = true;
};

struct CastCase {
  Extent matrix;
  Encoding encoding;
  bool transform = false, random = false;
  WantedSide rows, columns;
  std::size_t shift = 0;  // the addresses are `shift` elements above a multiple of 256 bytes

  bool square() const { return encoding.tile.rows > 1; }
};

float amax_of_values(const std::vector<bfloat16>& values) {
  float amax = 0;
  const auto count = static_cast<std::int64_t>(values.size());
  take_amaxes(source_of(values), {1, count}, {}, {0, count}, {&amax, 1});
  return amax;
}

// One side of an operand, as the host computes it.
struct HostSide {
  HostSide(const std::vector<bfloat16>& values, Extent matrix, const Encoding& encoding,
           const StochasticRounding& rounding)
      : whole(amax_of_values(values)),
        decoded(values.size()),
        stored(room_for(encoding, stored_extent(encoding, matrix))) {
    const OperandSource operand{
        .values = values.data(), .matrix = matrix, .encoding = encoding, .whole = whole, .rounding = rounding};
    decode_operand(operand, decoded.data());
    quantize_operand(operand, stored.view());
  }

  float whole;
  std::vector<bfloat16> decoded;
  Stored stored;
};

// The same side on the device.
struct DeviceSide {
  DeviceSide(const HostSide& host, WantedSide wanted, std::size_t shift)
      : wanted(wanted),
        decoded(static_cast<std::int64_t>(host.decoded.size()), 2 * shift),
        codes(static_cast<std::int64_t>(host.stored.data.size()), shift),
        scales(static_cast<std::int64_t>(host.stored.scales.size()), shift) {}

  OperandSide side(const float* whole) {
    return {
        .whole = whole,
        .decoded = wanted.decoded ? decoded.data() : nullptr,
        .stored = {.data = wanted.stored ? codes.data() : nullptr, .scales = wanted.stored ? scales.data() : nullptr}};
  }
  void check(const HostSide& host, const char* name) const {
    static constexpr std::uint8_t kFill = DeviceArray<std::uint8_t>::kFill;
    const auto untouched = [](std::size_t bytes) { return std::vector<std::uint8_t>(bytes, kFill); };
    bfloat16 fill;
    fill.bits = kFill * 0x101;
    EXPECT_TRUE(
        same_bits(decoded.values(), wanted.decoded ? host.decoded : std::vector<bfloat16>(host.decoded.size(), fill)))
        << name;
    EXPECT_TRUE(same_bytes(codes.values(), wanted.stored ? host.stored.data : untouched(host.stored.data.size())))
        << name << " codes";
    EXPECT_TRUE(same_bytes(scales.values(), wanted.stored ? host.stored.scales : untouched(host.stored.scales.size())))
        << name << " scales";
  }

  WantedSide wanted;
  DeviceArray<bfloat16> decoded;
  DeviceArray<std::uint8_t> codes, scales;
};

class DeviceOperandCast : public OnDevice {
 protected:
  static void check(const std::vector<bfloat16>& values, const CastCase& of) {
    SCOPED_TRACE(testing::Message() << of.matrix.rows << " x " << of.matrix.cols << ", tile " << of.encoding.tile.rows
                                    << " x " << of.encoding.tile.cols << ", transform " << of.transform << ", random "
                                    << of.random);
    const std::int64_t step = 7;
    DeviceArray<std::int64_t> device_step(std::vector<std::int64_t>{step});
    StochasticRounding rounding{.key = {1, 2}, .step = of.random ? &step : nullptr, .first_token = 123};
    const Extent matrix = of.matrix, wide = of.transform ? transformed_extent(matrix) : matrix;
    std::vector<bfloat16> transformed = values;
    if (of.transform) {
      transformed.resize(static_cast<std::size_t>(wide.elements()));
      transform_columns(values.data(), matrix, transformed.data());
    }
    const HostSide rows(values, matrix, of.encoding, rounding);
    const HostSide columns(transformed, wide, by_columns(of.encoding), rounding);
    DeviceSide device_rows(rows, of.rows, of.shift), device_columns(columns, of.columns, of.shift);
    DeviceArray<bfloat16> source(values, 2 * of.shift);
    DeviceArray<float> wholes(std::vector<float>{rows.whole, columns.whole});
    rounding.step = of.random ? device_step.data() : nullptr;
    kernels().cast_operand({.source = source.data(),
                            .matrix = matrix,
                            .encoding = of.encoding,
                            .rows = device_rows.side(wholes.data()),
                            .columns = of.square() ? OperandSide{} : device_columns.side(wholes.data() + 1),
                            .transform = of.transform,
                            .rounding = rounding},
                           nullptr);
    device_rows.check(rows, "rows");
    if (!of.square()) device_columns.check(columns, "columns");
  }

  // Calls visit(case) for every recipe of an extent.
  template <typename Visit>
  static void for_each_recipe(Extent matrix, Visit visit) {
    visit(CastCase{.matrix = matrix, .encoding = kMxfp8Rows});
    visit(CastCase{.matrix = matrix, .encoding = kNvfp4Squares});
    for (const bool transform : {false, true})
      for (const bool random : {false, true})
        visit(CastCase{.matrix = matrix, .encoding = kNvfp4Rows, .transform = transform, .random = random});
  }
};

TEST_F(DeviceOperandCast, GivesTheBytesOfTheHostInAllExtents) {
  unsigned seed = 0;
  for (const Extent& matrix :
       {Extent{1, 2}, Extent{1, 1}, Extent{5, 7}, Extent{16, 16}, Extent{17, 33}, Extent{33, 136}, Extent{64, 514},
        Extent{31, 512}, Extent{300, 4112}, Extent{241, 49}, Extent{0, 32}})
    for_each_recipe(matrix, [&](CastCase of) {
      of.shift = ++seed % 3 == 0 ? 1 : 0;
      check(rounded_values(all_kinds_of_values(matrix.elements(), seed)), of);
    });
}

TEST_F(DeviceOperandCast, GivesTheBytesOfTheHostForEveryMagnitude) {
  const Extent matrix{.rows = 48, .cols = 160};
  for (const float scale : {0.0F, 1e-30F, 1e30F, 0x1p-126F, 0x1p-133F, 0x1p120F})
    for_each_recipe(matrix, [&](const CastCase& of) {
      std::vector<float> values = random_values(matrix.elements(), 5);
      for (float& value : values) value *= scale;
      check(rounded_values(values), of);
    });
}

TEST_F(DeviceOperandCast, ANanOrAnInfinityChangesItsTiles) {
  const Extent matrix{.rows = 48, .cols = 160};
  for (const float special : {INFINITY, -INFINITY, NAN, -NAN})
    for_each_recipe(matrix, [&](const CastCase& of) {
      auto values = rounded_values(random_values(matrix.elements(), 6));
      values[37 * 160 + 45] = bfloat16(special);
      check(values, of);
    });
}

TEST_F(DeviceOperandCast, WritesOnlyTheRequestedResults) {
  const Extent matrix{.rows = 40, .cols = 264};
  const auto values = rounded_values(random_values(matrix.elements(), 7));
  for (int wanted = 0; wanted < 16; ++wanted)
    for_each_recipe(matrix, [&](CastCase of) {
      of.rows = {(wanted & 1) != 0, (wanted & 2) != 0};
      of.columns = {(wanted & 4) != 0, (wanted & 8) != 0};
      check(values, of);
    });
}

// Keeps the codes of columns for backward, and decodes them later.
TEST_F(DeviceOperandCast, KeptColumnsDecodeToTheDecodedColumns) {
  const Extent matrix{.rows = 50, .cols = 96}, wide = transformed_extent(matrix);
  const auto values = rounded_values(all_kinds_of_values(matrix.elements(), 8));
  std::vector<bfloat16> transformed(static_cast<std::size_t>(wide.elements()));
  transform_columns(values.data(), matrix, transformed.data());
  const HostSide host(transformed, wide, by_columns(kNvfp4Rows), {});
  DeviceSide side(host, {.decoded = false}, 0);
  DeviceArray<bfloat16> source(values), target(wide.elements());
  DeviceArray<float> whole(std::vector<float>{host.whole});
  const OperandSide columns = side.side(whole.data());
  kernels().cast_operand(
      {.source = source.data(), .matrix = matrix, .encoding = kNvfp4Rows, .columns = columns, .transform = true},
      nullptr);
  const Dequantization kept{.source = columns.stored,
                            .matrix = wide,
                            .encoding = by_columns(kNvfp4Rows),
                            .target = target.data(),
                            .decoded = true};
  kernels().dequantize({&kept, 1}, nullptr);
  EXPECT_TRUE(same_bits(target.values(), host.decoded));
}

TEST_F(DeviceOperandCast, RaisesTheAmaxesOfBothSides) {
  unsigned seed = 20;
  for (const Extent& matrix : {Extent{1, 1}, Extent{17, 33}, Extent{300, 4112}, Extent{64, 514}, Extent{0, 8}})
    for (const bool special : {false, true}) {
      ++seed;
      const auto values = rounded_values(special ? all_kinds_of_values(matrix.elements(), seed)
                                                 : random_values(matrix.elements(), seed));
      std::vector<bfloat16> transformed(static_cast<std::size_t>(transformed_extent(matrix).elements()));
      transform_columns(values.data(), matrix, transformed.data());
      DeviceArray<bfloat16> source(values, 2 * (seed % 2));
      DeviceArray<float> both(std::vector<float>{0, 0}), one(std::vector<float>{0.25F, 0});
      kernels().take_operand_amaxes(
          {.source = source.data(), .matrix = matrix, .rows = both.data(), .columns = both.data() + 1}, nullptr);
      kernels().take_operand_amaxes({.source = source.data(), .matrix = matrix, .rows = one.data()}, nullptr);
      EXPECT_EQ(both.values(), (std::vector<float>{amax_of_values(values), amax_of_values(transformed)}));
      EXPECT_EQ(one.values(), (std::vector<float>{std::max(0.25F, amax_of_values(values)), 0}));
    }
}

TEST_F(DeviceOperandCast, RejectsOtherEncodingsAndAMissingAmax) {
  DeviceArray<bfloat16> source(64), target(64);
  DeviceArray<float> whole(1);
  OperandCast cast{.source = source.data(), .matrix = {8, 8}, .encoding = {.tile = {1, 128}, .powers_of_two = true}};
  EXPECT_ANY_THROW(kernels().cast_operand(cast, nullptr));
  cast.encoding = kMxfp8Rows;
  cast.transform = true;
  EXPECT_ANY_THROW(kernels().cast_operand(cast, nullptr));
  cast = {.source = source.data(), .matrix = {8, 8}, .encoding = kNvfp4Squares};
  cast.columns = {.whole = whole.data(), .decoded = target.data()};
  EXPECT_ANY_THROW(kernels().cast_operand(cast, nullptr));
  cast.columns = {};
  cast.rows = {.decoded = target.data()};
  EXPECT_ANY_THROW(kernels().cast_operand(cast, nullptr));
}

}  // namespace
}  // namespace tessera::quant
