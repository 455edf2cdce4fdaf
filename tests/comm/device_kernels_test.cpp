// Tests quant::Kernels. The host's kernels are compared with plain loops, except those that tests/quant covers. A
// device's kernels are compared with the host's, bit by bit, at every alignment.
#include "tessera/quant/device_kernels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/comm/reduce.h"
#include "tests/comm/placed.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using quant::bfloat16;
using quant::DType;

// Sums squares in the order that device_kernels.h defines, lane by lane.
template <typename T>
double squares_by_definition(const std::vector<T>& row) {
  const auto cols = static_cast<std::int64_t>(row.size());
  constexpr std::int64_t piece = quant::kSquaresPiece;
  const std::int64_t lanes = quant::squares_lanes(cols);
  std::vector<double> sums(static_cast<std::size_t>(lanes));
  for (std::int64_t lane = 0; lane < lanes; ++lane)
    for (std::int64_t begin = lane * piece; begin < cols; begin += lanes * piece)
      for (std::int64_t i = begin; i < std::min(begin + piece, cols); ++i)
        sums[static_cast<std::size_t>(lane)] += std::pow(static_cast<double>(row[static_cast<std::size_t>(i)]), 2);
  double total = 0;
  for (std::size_t run = 0; run < sums.size(); run += 32) {
    std::vector<double> lane(sums.begin() + static_cast<std::ptrdiff_t>(run),
                             sums.begin() + static_cast<std::ptrdiff_t>(run) + 32);
    while (lane.size() > 1) {
      const std::size_t half = lane.size() / 2;
      for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
      lane.resize(half);
    }
    total += lane[0];
  }
  return total;
}

// The magnitudes of the values differ so much that another order of addition gives other bits.
template <typename T>
void check_squares(bool accumulate, std::int64_t rows, std::int64_t cols) {
  auto part = values_of<T>(0, 0, rows * cols), sum = values_of<T>(1, 0, rows * cols);
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = std::ldexp(part[i], static_cast<int>(i * 7 % 41) - 20);
  const void* data = part.data();
  std::vector<double> squares(static_cast<std::size_t>(rows));
  quant::host_kernels().ordered_sum_squares(sum.data(), TypeOf<T>::value, accumulate, std::span(&data, 1),
                                            TypeOf<T>::value, rows, cols, squares.data());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<T> own(sum.begin() + row * cols, sum.begin() + (row + 1) * cols);
    EXPECT_EQ(squares[static_cast<std::size_t>(row)], squares_by_definition(own)) << cols << " columns";
  }
}

TEST(HostKernels, SquaresFollowTheirDefinition) {
  for (const bool accumulate : {false, true})
    for (const std::int64_t rows : {0, 1, 3})
      for (const std::int64_t cols : {1, 3, 4, 127, 128, 130, 301, 1000, 1024, 1025, 2047, 5000}) {
        check_squares<float>(accumulate, rows, cols);
        check_squares<double>(accumulate, rows, cols);
      }
}

// Runs one call on the host and on the device, on the same values. The values are `shift` elements after an aligned
// address.
class DeviceKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    lane_ = base::make_cuda_lane("kernels", kDevice);
    kernels_ = quant::make_cuda_kernels(kDevice, lane_->stream());
  }
  static constexpr base::Device kDevice = base::cuda_device(0);

  // Compares the `count` elements of Out that call(kernels, out, parts) writes on the host and on the device. `own` is
  // the part whose memory is also the result; -1: the result has its own memory.
  template <typename Out, typename Part, typename Call>
  void compare(int parts, std::int64_t count, std::int64_t shift, int own, Call call) {
    const auto on_host = run<Out, Part>(quant::host_kernels(), parts, count, shift, own, call);
    const auto on_device = run<Out, Part>(*kernels_, parts, count, shift, own, call);
    EXPECT_TRUE(same_bits(on_device, on_host)) << parts << " parts, shift " << shift << ", own " << own;
  }
  template <typename Out, typename Part, typename Call>
  std::vector<Out> run(const quant::Kernels& kernels, int parts, std::int64_t count, std::int64_t shift, int own,
                       Call call) {
    const auto device = kernels.device();
    std::vector<Placed<Part>> data;
    std::vector<const void*> pointers;
    Placed<Out> out(values_of<Out>(77, 0, count + shift), device);
    for (int p = 0; p < parts; ++p) data.emplace_back(values_of<Part>(p, 0, count + shift), device);
    for (int p = 0; p < parts; ++p)
      pointers.push_back(p == own ? static_cast<const void*>(out.data() + shift)
                                  : data[static_cast<std::size_t>(p)].data() + shift);
    call(kernels, out.data() + shift, pointers);
    lane_->synchronize();
    return out.values();
  }

  std::unique_ptr<base::Lane> lane_;
  std::unique_ptr<quant::Kernels> kernels_;
};

template <typename T>
constexpr bool kIsFloating = quant::is_floating(TypeOf<T>::value);

constexpr int kPartCounts[] = {1, 2, 3, 4, 5, 8, 19, 64, 65, 130};
constexpr std::int64_t kCounts[] = {0, 1, 7, 31, 4096, 5'003};

template <typename Acc, typename Part, typename Compare>
void for_sums(Compare compare) {
  for (const int parts : kPartCounts)
    for (const std::int64_t count : kCounts)
      for (const bool accumulate : {false, true})
        for (const std::int64_t shift : {0, 1, 4}) compare(parts, count, accumulate, shift);
}

TEST_F(DeviceKernels, OrderedSumsEqualTheHosts) {
  const auto check = [&](auto acc, auto part) {
    using Acc = decltype(acc);
    using Part = decltype(part);
    for_sums<Acc, Part>([&](int parts, std::int64_t count, bool accumulate, std::int64_t shift) {
      const int own = std::is_same_v<Acc, Part> && !accumulate && count % 2 == 1 ? parts - 1 : -1;
      compare<Acc, Part>(parts, count, shift, own,
                         [&](const quant::Kernels& kernels, Acc* out, quant::Kernels::Parts list) {
                           kernels.ordered_sum(out, TypeOf<Acc>::value, accumulate, list, TypeOf<Part>::value, count);
                         });
    });
  };
  check(float{}, bfloat16{});
  check(float{}, float{});
  check(float{}, double{});
  check(double{}, bfloat16{});
  check(double{}, float{});
  check(double{}, double{});
}

TEST_F(DeviceKernels, ReductionsEqualTheHosts) {
  const auto check = [&](auto element) {
    using T = decltype(element);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      if (op == ReduceOp::sum && std::is_same_v<T, std::uint8_t>) continue;
      for (const int parts : kPartCounts)
        for (const std::int64_t count : kCounts)
          for (const std::int64_t shift : {0, 1})
            for (const int own : {-1, parts - 1})
              compare<T, T>(parts, count, shift, own,
                            [&](const quant::Kernels& kernels, T* out, quant::Kernels::Parts list) {
                              reduce(kernels, out, list, TypeOf<T>::value, op, count);
                            });
    }
  };
  check(std::uint8_t{});
  check(std::int32_t{});
  check(std::int64_t{});
  check(bfloat16{});
  check(float{});
  check(double{});
}

TEST_F(DeviceKernels, SumsWithSquaresEqualTheHosts) {
  struct Extent {
    std::int64_t rows, cols;
  };
  const auto check = [&](auto acc, auto part) {
    using Acc = decltype(acc);
    using Part = decltype(part);
    for (const Extent e : {Extent{0, 5}, {3, 1}, {9, 7}, {1000, 4}, {17, 1024}, {5, 1025}, {3, 4096}, {2, 100'000}})
      for (const int parts : {1, 4, 9, 66})
        for (const std::int64_t shift : {0, 1})
          for (const bool accumulate : {false, true}) {
            std::vector<std::vector<double>> squares;
            const auto call = [&](const quant::Kernels& kernels, Acc* out, quant::Kernels::Parts list) {
              Placed<double> row_sums(e.rows, kernels.device());
              kernels.ordered_sum_squares(out, TypeOf<Acc>::value, accumulate, list, TypeOf<Part>::value, e.rows,
                                          e.cols, row_sums.data());
              lane_->synchronize();
              squares.push_back(row_sums.values());
            };
            compare<Acc, Part>(parts, e.rows * e.cols, shift, -1, call);
            EXPECT_TRUE(same_bits(squares[1], squares[0])) << e.rows << " x " << e.cols << ", shift " << shift;
          }
  };
  check(float{}, bfloat16{});
  check(float{}, float{});
  check(double{}, double{});
}

TEST_F(DeviceKernels, CastsEqualTheHosts) {
  const auto check = [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    for (const std::int64_t count : kCounts)
      for (const std::int64_t shift : {0, 1})
        compare<To, From>(1, count, shift, -1, [&](const quant::Kernels& kernels, To* out, quant::Kernels::Parts list) {
          kernels.cast(list[0], TypeOf<From>::value, out, TypeOf<To>::value, count);
        });
  };
  const auto from_all = [&](auto to) {
    check(bfloat16{}, to);
    check(float{}, to);
    check(double{}, to);
  };
  from_all(bfloat16{});
  from_all(float{});
  from_all(double{});
}

// Tests every exponent, halfway cases and their neighbours, denormals and infinities.
TEST_F(DeviceKernels, RoundingsEqualTheHosts) {
  std::vector<float> floats;
  std::vector<double> doubles;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 32749) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;  // the bits of a NaN differ between devices
    floats.push_back(value);
    for (const double off : {0.0, 1e-9, -1e-9}) doubles.push_back(static_cast<double>(value) * (1 + off));
  }
  const auto cast_on = [&](const quant::Kernels& kernels, const auto& values, DType from, DType to, auto target) {
    using To = decltype(target);
    const Placed source(values, kernels.device());
    Placed<To> out(static_cast<std::int64_t>(values.size()), kernels.device());
    kernels.cast(source.data(), from, out.data(), to, static_cast<std::int64_t>(values.size()));
    lane_->synchronize();
    return out.values();
  };
  const auto same = [&](const auto& values, DType from, DType to, auto target) {
    EXPECT_TRUE(same_bits(cast_on(*kernels_, values, from, to, target),
                          cast_on(quant::host_kernels(), values, from, to, target)));
  };
  same(floats, DType::fp32, DType::bf16, bfloat16{});
  same(doubles, DType::fp64, DType::bf16, bfloat16{});
  same(doubles, DType::fp64, DType::fp32, float{});
}

TEST_F(DeviceKernels, ExtremesKeepNotANumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool maximum : {true, false}) {
    const Placed a(std::vector<float>{1, nan, 3, -1}, kDevice), b(std::vector<float>{2, 5, nan, -2}, kDevice);
    Placed<float> out(4, kDevice);
    const std::vector<const void*> parts{a.data(), b.data()};
    kernels_->ordered_extreme(out.data(), parts, DType::fp32, 4, maximum);
    lane_->synchronize();
    const auto values = out.values();
    EXPECT_EQ(values[0], maximum ? 2 : 1);
    EXPECT_TRUE(std::isnan(values[1]) && std::isnan(values[2]));
    EXPECT_EQ(values[3], maximum ? -1 : -2);
  }
}

TEST_F(DeviceKernels, CopiesMoveOnlyTheBox) {
  struct Case {
    std::int64_t rows, cols, from_stride, to_stride, shift;
  };
  for (const std::size_t element : {1, 2, 4, 8})
    for (const Case c : {Case{0, 3, 4, 4, 0},
                         {1, 5, 9, 7, 1},
                         {3, 5, 8, 6, 1},
                         {17, 40, 40, 40, 0},
                         {300, 64, 128, 96, 0},
                         {70'000, 3, 5, 4, 0},
                         {5, 5000, 6000, 5008, 16}}) {
      const auto size =
          static_cast<std::int64_t>(element) * (c.rows * std::max(c.from_stride, c.to_stride) + c.shift + 8);
      const auto shift = c.shift * static_cast<std::int64_t>(element);
      const auto on = [&](const quant::Kernels& kernels) {
        const Placed from(values_of<std::uint8_t>(1, 0, size), kernels.device());
        Placed to(values_of<std::uint8_t>(2, 0, size), kernels.device());
        kernels.copy_matrix(from.data() + shift, c.from_stride, to.data(), c.to_stride, c.rows, c.cols, element);
        lane_->synchronize();
        return to.values();
      };
      EXPECT_TRUE(same_bits(on(*kernels_), on(quant::host_kernels())))
          << c.rows << " x " << c.cols << " of " << element;
    }
}

TEST_F(DeviceKernels, FillsSetEveryElement) {
  const auto check = [&](auto element) {
    using T = decltype(element);
    for (const double value : {0.0, -0.0, 3.0})
      compare<T, T>(0, 1003, 1, -1, [&](const quant::Kernels& kernels, T* out, quant::Kernels::Parts) {
        kernels.fill(out, TypeOf<T>::value, value, 1000);
      });
  };
  check(std::uint8_t{});
  check(std::int32_t{});
  check(std::int64_t{});
  check(bfloat16{});
  check(float{});
  check(double{});
}

TEST_F(DeviceKernels, RefuseTheSameArgumentsAsTheHost) {
  Placed<float> out(4, kDevice);
  const void* part = out.data();
  const std::span parts(&part, 1);
  for (const quant::Kernels* kernels : {&quant::host_kernels(), static_cast<const quant::Kernels*>(kernels_.get())}) {
    EXPECT_THROW(kernels->ordered_sum(out.data(), DType::bf16, false, parts, DType::fp32, 4), Error);
    EXPECT_THROW(kernels->ordered_sum(out.data(), DType::fp32, false, parts, DType::i32, 4), Error);
    EXPECT_THROW(kernels->ordered_sum(out.data(), DType::fp32, false, {}, DType::fp32, 4), Error);
    EXPECT_THROW(kernels->ordered_sum_integers(out.data(), parts, DType::fp32, 4), Error);
    EXPECT_THROW(kernels->cast(out.data(), DType::i32, out.data(), DType::fp32, 4), Error);
  }
}

}  // namespace
}  // namespace tessera::comm
