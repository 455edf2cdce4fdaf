// Checks the norm against exact integers, for every mesh, sharding of the optimizer's state and order of parameters.
// Squares of rows come from the last sum of a gradient or from a separate pass. Both must give the same bits, otherwise
// the norm would depend on the sharding.
#include "tessera/train/update/gradient_norm.h"
#include "tessera/base/cuda_only.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/comm/local/world.h"
#include "tessera/comm/nccl/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/shard/rows/row_kernels.h"
#include "tests/quant/wide_integer.h"
#include "tests/runtime/elements.h"

namespace tessera::train {
namespace {

struct Mesh {
  int tp = 1, gtp = 1, dp = 1;
  bool zero = false, backwards = false;  // whether ZeRO-1 is on; whether parameters are added in reverse order

  std::string name() const {
    return "tp " + std::to_string(tp) + " gtp " + std::to_string(gtp) + " dp " + std::to_string(dp) +
           (zero ? " zero" : "") + (backwards ? " backwards" : "");
  }
};

const std::vector<Mesh>& meshes() {
  static const std::vector<Mesh> all{{},
                                     {.backwards = true},
                                     {.gtp = 2},
                                     {.gtp = 3, .backwards = true},
                                     {.gtp = 7},
                                     {.dp = 2},
                                     {.dp = 3, .zero = true},
                                     {.gtp = 2, .dp = 2},
                                     {.gtp = 2, .dp = 2, .zero = true, .backwards = true},
                                     {.tp = 2},
                                     {.tp = 2, .gtp = 2},
                                     {.tp = 2, .dp = 2, .zero = true},
                                     {.tp = 2, .gtp = 2, .dp = 2, .zero = true, .backwards = true},
                                     {.tp = 3, .gtp = 2, .dp = 2}};
  return all;
}

// Parameters with every kind of sharding: rows in blocks, columns, overlapping parts, replicated, a single row, frozen.
std::vector<shard::ParameterSpec> specs_of(int tp) {
  const auto ranks = static_cast<std::size_t>(tp);
  std::vector<std::vector<layout::Range>> overlap(ranks);
  for (std::int64_t rank = 0; rank < tp; ++rank)
    overlap[static_cast<std::size_t>(rank)] = {{rank == 0 ? 0 : 4 + rank, rank + 1 == tp ? 12 : 5 + rank}, {12, 15}};
  return {{.name = "stacked", .dims = {140, 5}, .compute = layout::cut_rows({140, 5}, {{"a", 70}, {"b", 70}}, tp)},
          {.name = "columns", .dims = {60, 9}, .compute = layout::cut_cols({60, 9}, tp)},
          {.name = "overlap", .dims = {15, 4}, .compute = layout::rows_by_rank({15, 4}, overlap)},
          {.name = "norm", .dims = {9}, .compute = layout::replicated({1, 9}, tp), .sharded = false},
          {.name = "frozen", .dims = {5, 3}, .compute = layout::replicated({5, 3}, tp), .trainable = false},
          {.name = "one row", .dims = {1, 6}, .compute = layout::replicated({1, 6}, tp)}};
}

// Returns the gradient's element at (row, column) of a parameter.
using Gradient = std::function<double(const std::string& name, std::int64_t row, std::int64_t column)>;

std::uint64_t hash_of(const std::string& name, std::int64_t row, std::int64_t column) {
  std::mt19937_64 random(std::hash<std::string>()(name) + static_cast<std::uint64_t>(row * 4096 + column));
  return random();
}

// Each row has one exponent, from low to high, and integers of 10 bits, so the squares of a row add up without
// rounding.
Gradient exact_rows(int low, int high) {
  return [=](const std::string& name, std::int64_t row, std::int64_t column) {
    const auto exponent = low + static_cast<int>(hash_of(name, row, -1) % static_cast<unsigned>(high - low + 1));
    return std::ldexp(static_cast<double>(hash_of(name, row, column) % 1024), exponent);
  };
}

// fp32 elements whose sums of squares are rounded.
double random_element(const std::string& name, std::int64_t row, std::int64_t column) {
  const std::uint64_t hash = hash_of(name, row, column);
  const float mantissa = static_cast<float>(hash >> 40) * 0x1p-24f - 0.5f;
  return static_cast<double>(std::ldexp(mantissa, static_cast<int>(hash % 24) - 12));
}

double exact_norm(const Gradient& gradient) {
  quant::WideInteger sum;
  for (const shard::ParameterSpec& spec : specs_of(1))
    for (std::int64_t row = 0; row < spec.compute.shape.rows; ++row)
      for (std::int64_t column = 0; spec.trainable && column < spec.compute.shape.cols; ++column)
        sum += quant::WideInteger(std::pow(gradient(spec.name, row, column), 2));
  return std::sqrt(quant::nearest(sum));
}

template <typename T>
void write_gradient(shard::ShardedParameter& parameter, const Gradient& gradient) {
  std::vector<T> values(static_cast<std::size_t>(parameter.shard_elements()));
  const std::int64_t cols = parameter.storage.shape.cols;
  runtime::for_each_element(parameter.local_storage, cols, [&](std::int64_t at, std::int64_t i) {
    values[static_cast<std::size_t>(at)] = static_cast<T>(gradient(parameter.spec.name, i / cols, i % cols));
  });
  base::copy_bytes(parameter.main_grad.data(), values.data(), values.size() * sizeof(T));
}

ops::Clip clip_of_rank(comm::World& world, const Mesh& mesh, quant::DType type, const Gradient& gradient) {
  shard::ParallelGroups parallel =
      shard::make_parallel_groups(world, nn::rank_layout({.tp = mesh.tp, .gtp = mesh.gtp, .dp = mesh.dp}));
  runtime::Runtime runtime(parallel, {.model = type, .accumulator = type, .wire = type}, {.zero = mesh.zero});
  std::vector<shard::ParameterSpec> specs = specs_of(mesh.tp);
  if (mesh.backwards) std::ranges::reverse(specs);
  for (shard::ParameterSpec& spec : specs) runtime.parameters().add(std::move(spec));
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.trainable) continue;
    if (type == quant::DType::fp32)
      write_gradient<float>(parameter, gradient);
    else
      write_gradient<double>(parameter, gradient);
  }
  GradientNorm norm(runtime);
  ops::Clip clip;
  for (int twice = 0; twice < 2; ++twice) {  // no state is left from one step to the next
    norm.compute(1.0);
    parallel.compute->synchronize();
    base::copy_bytes(&clip, norm.result(), sizeof clip);
  }
  return clip;
}

// Returns the norm, which is equal on all ranks.
double norm_on(const Mesh& mesh, quant::DType type, const Gradient& gradient) {
  std::vector<ops::Clip> clips(static_cast<std::size_t>(mesh.tp * mesh.gtp * mesh.dp));
  comm::run_local(static_cast<int>(clips.size()), {}, [&](comm::World& world) {
    clips[static_cast<std::size_t>(world.rank())] = clip_of_rank(world, mesh, type, gradient);
  });
  const double norm = clips.front().norm;
  for (const ops::Clip& clip : clips) {
    EXPECT_TRUE(clip.norm == norm || (std::isnan(clip.norm) && std::isnan(norm))) << mesh.name();
    EXPECT_EQ(clip.applies, std::isfinite(norm) ? 1 : 0) << mesh.name();
    EXPECT_TRUE(std::isnan(norm) || clip.factor == ops::clip_factor(norm, 1.0)) << mesh.name();
  }
  return norm;
}

constexpr quant::DType kTypes[] = {quant::DType::fp32, quant::DType::fp64};

// Covers the smallest subnormal fp32 numbers up to 2^120, with neighbouring exponents. A sum with intermediate rounding
// would give other bits.
const std::vector<Gradient>& exact_gradients() {
  static const std::vector<Gradient> all{exact_rows(-149, 110), exact_rows(-149, -130), exact_rows(-26, 0),
                                         exact_rows(-20, 20), exact_rows(100, 110)};
  return all;
}

TEST(GradientNorm, MatchesExactIntegersOnEveryMesh) {
  for (const Gradient& gradient : exact_gradients()) {
    const double expected = exact_norm(gradient);
    EXPECT_GT(expected, 0);
    for (const quant::DType type : kTypes)
      for (const Mesh& mesh : meshes())
        EXPECT_EQ(norm_on(mesh, type, gradient), expected) << mesh.name() << " " << name_of(type);
  }
}

TEST(GradientNorm, HasTheSameBitsIfRowSumsAreRounded) {
  for (const quant::DType type : kTypes)
    for (const int tp : {1, 2}) {
      const double expected = norm_on({.tp = tp}, type, random_element);
      for (const Mesh& mesh : meshes()) {
        if (mesh.tp != tp) continue;
        EXPECT_EQ(norm_on(mesh, type, random_element), expected) << mesh.name();
      }
    }
}

// Returns the norm of a table with 11 rows of 4 elements 1. Every third row has the state 0.
double norm_of_table(int gtp, int dp) {
  std::vector<double> norms(static_cast<std::size_t>(gtp * dp));
  comm::run_local(gtp * dp, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, nn::rank_layout({.gtp = gtp, .dp = dp}));
    runtime::Runtime runtime(parallel, {}, {});
    const schedule::ParameterId id =
        runtime.parameters().add({.name = "table",
                                  .dims = {11, 4},
                                  .compute = layout::replicated({11, 4}, 1),
                                  .reads = {.per_microbatch = 2, .lookup = shard::Lookup::rows}});
    shard::ShardedParameter& table = runtime.parameter(id);
    write_gradient<float>(table, [](const std::string&, std::int64_t, std::int64_t) { return 1; });
    std::vector<std::uint8_t> states;
    for (std::int64_t row = table.local_storage.pieces.front().box.row; states.size() < table.row_states.size(); ++row)
      states.push_back(row % 3 == 0 ? 0 : shard::kRowWritten);
    base::copy_bytes(table.row_states.data(), states.data(), states.size());
    GradientNorm norm(runtime);
    norm.compute(0);
    norms[static_cast<std::size_t>(world.rank())] = norm.result()->norm;
  });
  EXPECT_EQ(norms, std::vector(norms.size(), norms.front()));
  return norms.front();
}

// A sum over replicas writes main_grad and not the states of its rows.
TEST(GradientNorm, DoesNotReadZeroRowsOfOneReplica) {
  for (const int gtp : {1, 2, 3}) {
    EXPECT_EQ(norm_of_table(gtp, 1), std::sqrt(7 * 4.0));
    EXPECT_EQ(norm_of_table(gtp, 2), std::sqrt(11 * 4.0));
  }
}

// The element is in the last row, which another rank stores on each mesh.
TEST(GradientNorm, PropagatesNaNAndInfinity) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const double bad : {infinity, -infinity, nan})
    for (const char* name : {"stacked", "norm", "overlap"}) {
      const auto gradient = [&](const std::string& parameter, std::int64_t row, std::int64_t column) {
        const bool is_last = row == (parameter == "stacked" ? 139 : parameter == "overlap" ? 14 : 0);
        return parameter == name && is_last && column == 3 ? bad : random_element(parameter, row, column);
      };
      for (const Mesh& mesh : meshes()) {
        const double norm = norm_on(mesh, quant::DType::fp32, gradient);
        EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : norm == infinity) << mesh.name() << " " << name;
      }
    }
  // A NaN and an infinity together give NaN, as in a plain sum.
  const auto both = [&](const std::string& name, std::int64_t, std::int64_t column) {
    return name == "norm" ? nan : name == "stacked" && column == 0 ? infinity : 1.0;
  };
  EXPECT_TRUE(std::isnan(norm_on({.gtp = 3}, quant::DType::fp32, both)));
  // Squares above the range of fp64, and a sum of squares above it.
  for (const double large : {0x1p513, 0x1p511})
    EXPECT_EQ(
        norm_on({.gtp = 3}, quant::DType::fp64, [=](const std::string&, std::int64_t, std::int64_t) { return large; }),
        infinity);
}

class GradientNormOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  static double norm_of(quant::DType type, const Gradient& gradient) {
    comm::NcclOptions options;
    options.store = rendezvous::make_memory_store();
    base::set_device(options.device);
    const ops::Clip clip = clip_of_rank(*comm::make_nccl_world(options), {}, type, gradient);
    EXPECT_EQ(clip.applies, std::isfinite(clip.norm) ? 1 : 0);
    return clip.norm;
  }
};

TEST_F(GradientNormOnCuda, MatchesExactIntegers) {
  for (const quant::DType type : kTypes)
    for (const Gradient& gradient : exact_gradients()) EXPECT_EQ(norm_of(type, gradient), exact_norm(gradient));
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, std::nan("")}) {
    const double norm = norm_of(quant::DType::fp32, [=](const std::string&, std::int64_t row, std::int64_t column) {
      return row == 14 && column == 3 ? bad : 1.0;
    });
    EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : norm == infinity);
  }
}

TEST_F(GradientNormOnCuda, SumsAndPassesGiveTheSameBits) {
  const base::Device device = base::cuda_device(0);
  const auto lane = base::make_cuda_lane("norm", device);
  const auto kernels = quant::make_cuda_kernels(device, lane->stream());
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> values(-3, 3);
  for (const std::int64_t cols : {1, 3, 4, 129, 1000, 1024, 1025, 1028, 4096, 14336}) {
    const std::int64_t rows = 37;
    std::vector<float> host(static_cast<std::size_t>(rows * cols));
    std::vector<std::uint16_t> narrow;  // the values in bf16
    for (float& value : host) {
      narrow.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values(random)) >> 16));
      value = std::bit_cast<float>(static_cast<std::uint32_t>(narrow.back()) << 16);
    }
    base::Buffer narrow_gradient(narrow.size() * sizeof(std::uint16_t), device);
    base::copy_bytes(narrow_gradient.data(), narrow.data(), narrow_gradient.size());
    base::Buffer gradient(host.size() * sizeof(float), device);
    base::copy_bytes(gradient.data(), host.data(), gradient.size());
    const auto squares_of = [&](auto work) {
      base::Buffer squares(static_cast<std::size_t>(rows) * sizeof(double), device);
      lane->run([&] { work(squares.as<double>().data()); });
      lane->synchronize();
      std::vector<double> result(static_cast<std::size_t>(rows));
      base::copy_bytes(result.data(), squares.data(), squares.size());
      return result;
    };
    const auto by_pass = squares_of([&](double* squares) {
      base::cuda_only<ops::cuda::row_square_sums>(gradient.data(), quant::DType::fp32, rows, cols, cols, squares,
                                                  lane->stream(), /*states=*/nullptr);
    });
    const auto by_sum = squares_of([&](double* squares) {
      kernels->ordered_sum_squares(gradient.data(), quant::DType::fp32, true, {}, quant::DType::fp32, rows, cols,
                                   squares);
    });
    EXPECT_EQ(by_pass, by_sum) << cols << " columns";
    const auto by_narrow_pass = squares_of([&](double* squares) {
      base::cuda_only<ops::cuda::row_square_sums>(narrow_gradient.data(), quant::DType::bf16, rows, cols, cols, squares,
                                                  lane->stream(), /*states=*/nullptr);
    });
    EXPECT_EQ(by_pass, by_narrow_pass) << cols << " columns";
    EXPECT_GT(by_sum.front(), 0);
  }
}

}  // namespace
}  // namespace tessera::train
