// Tests updates by a rule of whole matrices with equal gradients on many meshes: masters, weights and momenta have the
// bits of one rank. tests/tools/test_muon.py compares one matrix with independent programs.
#include "tessera/train/update/matrix_update.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/text/name_hash.h"
#include "tessera/comm/local/world.h"
#include "tessera/models/decoder/decoder_layouts.h"
#include "tessera/models/decoder/decoder_parameters.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/optimizer/matrices/muon.h"
#include "tessera/quant/elementwise.h"
#include "tessera/train/update/master_values.h"
#include "tests/runtime/elements.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

constexpr int kMuonUpdates = 3;
constexpr double kMuonRate = 0.05;

struct MuonCase {
  nn::MeshDegrees degrees;
  bool zero = false;
  quant::DType model = quant::DType::bf16;
  bool has_bf16_momentum = false;
  int buckets = 2;
  bool splits_masters = false;
};

std::string text_of(const MuonCase& it) {
  const nn::MeshDegrees& d = it.degrees;
  std::string text = fmt::format("tp {} gtp {} dp {} zero {} {}", d.tp, d.gtp, d.dp, it.zero, name_of(it.model));
  if (d.experts) text += fmt::format(" etp {} ep {} egtp {}", d.experts->etp, d.experts->ep, d.experts->egtp);
  return text + fmt::format(" unused {} buckets {} split {}", d.unused.size(), it.buckets, it.splits_masters);
}

// Returns element i of a logical tensor.
double value_of(const std::string& name, const std::string& what, std::int64_t i) {
  const std::uint64_t mixed =
      (base::name_hash(name + what) + static_cast<std::uint64_t>(i)) * 0x9E3779B97F4A7C15U * 0xBF58476D1CE4E5B9U;
  return static_cast<double>(mixed >> 40) * 0x1p-23 - 1;
}

void fill(const layout::LocalLayout& local, std::int64_t cols, const std::string& name, const std::string& what,
          std::byte* data, quant::DType type) {
  runtime::for_each_element(local, cols, [&](std::int64_t at, std::int64_t i) {
    const double value = value_of(name, what, i);
    quant::cast(&value, quant::DType::fp64, data + shard::bytes_of(at, type), type, 1);
  });
}

// Logical tensors by name. Several ranks may hold an element; their values must be equal.
class LogicalTensors {
 public:
  void add(const std::string& name, const layout::LocalLayout& local, layout::Shape shape, const std::byte* data,
           quant::DType type) {
    const std::lock_guard lock(mutex_);
    std::vector<double>& tensor =
        tensors.try_emplace(name, static_cast<std::size_t>(shape.elements()), -77.0).first->second;
    runtime::for_each_element(local, shape.cols, [&](std::int64_t at, std::int64_t i) {
      double value = 0;
      quant::cast(data + shard::bytes_of(at, type), type, &value, quant::DType::fp64, 1);
      double& element = tensor[static_cast<std::size_t>(i)];
      EXPECT_TRUE(element == -77.0 || element == value) << name << " " << i;
      element = value;
    });
  }
  std::map<std::string, std::vector<double>> tensors;

 private:
  std::mutex mutex_;
};

std::vector<shard::ParameterSpec> hidden_matrices(const shard::ParallelGroups& parallel, const MuonCase& it) {
  const nn::MeshDegrees& degrees = it.degrees;
  models::ParameterOptions options{.tp_size = degrees.tp};
  const models::DecoderConfig model = degrees.unused.empty() ? balanced_model() : odd_model();
  if (degrees.experts) options.etp = degrees.experts->etp, options.ep = degrees.experts->ep;
  const shard::ComputeGroup& group = parallel.compute_group();
  options.tp_size = group.size;
  options.parts = models::parts_of(model, group.nominal_size, group.slots);
  options.shapes = group.shapes;
  std::vector<shard::ParameterSpec> specs = decoder_parameters(model, options);
  std::erase_if(specs, [](const shard::ParameterSpec& spec) { return !spec.is_hidden_matrix; });
  return specs;
}

// The masters, weights and momenta of this rank.
class RankUpdate {
 public:
  RankUpdate(runtime::Runtime& runtime, const MuonCase& it, const ops::MatrixRule& rule)
      : runtime_(runtime), rule_(rule), update_(runtime, rule), buckets_(it.buckets) {
    for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
      shard::ShardedParameter& parameter = runtime.parameter(id);
      const quant::DType type = rule.planes(parameter.types.accumulator).front().type;
      momenta_
          .emplace_back(static_cast<std::size_t>(shard::bytes_of(parameter.state_elements(), type)),
                        runtime.parallel().device)
          .fill_zero();
      MasterValues masters(parameter, runtime.parallel());
      fill(parameter.local_state, cols_of(parameter), parameter.spec.name, "master", masters.data(), masters.type());
      masters.store();
    }
  }

  void step(int number) {
    std::vector<std::byte> scalars(rule_.scalar_bytes());
    rule_.scalars({.lr = kMuonRate}, number, scalars.data());
    const ops::Clip clip{.factor = 0.5};
    const int weights = runtime_.parameters().weights();
    for (int b = 0; b < buckets_; ++b) {
      std::vector<MatrixShard> bucket;
      for (schedule::ParameterId id = weights * b / buckets_; id < weights * (b + 1) / buckets_; ++id)
        bucket.push_back({id, shard_of(id, number)});
      update_.update(bucket, scalars.data(), &clip);
    }
  }

  void collect(LogicalTensors& result) {
    for (schedule::ParameterId id = 0; id < runtime_.parameters().weights(); ++id) {
      shard::ShardedParameter& parameter = runtime_.parameter(id);
      const layout::LocalLayout& local = parameter.local_state;
      const layout::Shape shape = parameter.storage.shape;
      const std::string& name = parameter.spec.name;
      MasterValues masters(parameter, runtime_.parallel());
      result.add("master/" + name, local, shape, masters.data(), masters.type());
      result.add("weight/" + name, local, shape, parameter.state_weight(), parameter.types.model);
      result.add("momentum/" + name, local, shape, momenta_[static_cast<std::size_t>(id)].data(),
                 rule_.planes(parameter.types.accumulator).front().type);
    }
  }

 private:
  static std::int64_t cols_of(const shard::ShardedParameter& parameter) { return parameter.storage.shape.cols; }

  ops::UpdateShard shard_of(schedule::ParameterId id, int number) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    fill(parameter.local_state, cols_of(parameter), parameter.spec.name, fmt::format("gradient {}", number),
         parameter.state_gradient(), parameter.gradient_type());
    ops::UpdateShard shard{.master = parameter.state_master(),
                           .master_type = parameter.types.accumulator,
                           .weight = parameter.state_weight(),
                           .weight_type = parameter.types.model,
                           .is_split = parameter.has_split_master,
                           .gradient = parameter.state_gradient(),
                           .gradient_type = parameter.gradient_type(),
                           .count = parameter.state_elements(),
                           .rounding_key = ops::state_rounding_key(3, parameter.spec.name)};
    shard.planes[0] = momenta_[static_cast<std::size_t>(id)].data();
    return shard;
  }

  runtime::Runtime& runtime_;
  const ops::MatrixRule& rule_;
  MatrixUpdate update_;
  int buckets_;
  std::vector<base::Buffer> momenta_;
};

std::map<std::string, std::vector<double>> updated_on(const MuonCase& it) {
  const quant::DType accumulator = it.model == quant::DType::fp64 ? quant::DType::fp64 : quant::DType::fp32;
  const auto rule = ops::make_matrix_rule(ops::Muon{.weight_decay = 0.1, .has_bf16_momentum = it.has_bf16_momentum});
  const shard::RankLayout ranks = nn::rank_layout(it.degrees);
  LogicalTensors result;
  comm::run_local(ranks.mesh.world_size(), {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, ranks);
    runtime::Runtime runtime(parallel, {.model = it.model, .accumulator = accumulator, .wire = it.model},
                             {.zero = it.zero, .split_masters = it.splits_masters});
    for (shard::ParameterSpec& spec : hidden_matrices(parallel, it)) runtime.parameters().add(std::move(spec));
    RankUpdate update(runtime, it, *rule);
    for (int number = 1; number <= kMuonUpdates; ++number) update.step(number);
    update.collect(result);
  });
  for (const auto& [name, values] : result.tensors)
    EXPECT_EQ(std::ranges::count(values, -77.0), 0) << name << " is incomplete on " << text_of(it);
  return result.tensors;
}

nn::MeshDegrees dense(int tp, int gtp, int dp) {
  return {.tp = tp, .gtp = gtp, .dp = dp, .experts = nn::ExpertDegrees{1, tp, 1}};
}

nn::MeshDegrees experts(int tp, int gtp, int dp, int etp, int ep, int egtp) {
  return {.tp = tp, .gtp = gtp, .dp = dp, .experts = nn::ExpertDegrees{etp, ep, egtp}};
}

void expect_equal(const std::map<std::string, std::vector<double>>& expected, const MuonCase& it) {
  const std::map<std::string, std::vector<double>> got = updated_on(it);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected) EXPECT_EQ(got.at(name), values) << name << " on " << text_of(it);
}

const MuonCase kMuonMeshes[] = {{.degrees = dense(1, 2, 1)},
                                {.degrees = dense(1, 3, 1)},
                                {.degrees = dense(1, 4, 1)},
                                {.degrees = dense(2, 1, 1)},
                                {.degrees = dense(3, 1, 1)},
                                {.degrees = dense(2, 2, 1)},
                                {.degrees = dense(1, 1, 2)},
                                {.degrees = dense(1, 1, 2), .zero = true},
                                {.degrees = dense(1, 2, 2), .zero = true},
                                {.degrees = dense(2, 2, 2), .zero = true},
                                {.degrees = dense(1, 1, 3), .zero = true, .buckets = 1},
                                {.degrees = experts(1, 2, 1, 1, 2, 1)},
                                {.degrees = experts(1, 2, 1, 1, 1, 2), .buckets = 3},
                                {.degrees = experts(1, 2, 1, 1, 1, 1)},
                                {.degrees = experts(1, 4, 1, 1, 2, 2)},
                                {.degrees = experts(2, 2, 2, 2, 1, 2), .zero = true},
                                {.degrees = experts(1, 4, 1, 1, 2, 1)},
                                {.degrees = experts(1, 4, 2, 1, 2, 1), .zero = true}};

TEST(MatrixUpdate, GivesTheBitsOfOneRankOnEveryMesh) {
  for (const quant::DType type : {quant::DType::bf16, quant::DType::fp64}) {
    const auto expected = updated_on({.degrees = dense(1, 1, 1), .model = type});
    for (MuonCase it : kMuonMeshes) {
      it.model = type;
      expect_equal(expected, it);
    }
  }
}

TEST(MatrixUpdate, RoundsAMomentumInBf16AlikeOnEveryMesh) {
  const auto expected = updated_on({.degrees = dense(1, 1, 1), .has_bf16_momentum = true});
  EXPECT_NE(expected, updated_on({.degrees = dense(1, 1, 1)}));
  for (MuonCase it : kMuonMeshes) {
    it.has_bf16_momentum = true;
    expect_equal(expected, it);
  }
}

TEST(MatrixUpdate, GivesTheBitsOfWholeMastersToSplitMasters) {
  const auto expected = updated_on({.degrees = dense(1, 1, 1)});
  expect_equal(expected, {.degrees = dense(1, 1, 1), .splits_masters = true});
  for (MuonCase it : kMuonMeshes) {
    it.splits_masters = true;
    expect_equal(expected, it);
  }
}

TEST(MatrixUpdate, GivesTheBitsOfOneRankWithUnusedPlaces) {
  const auto with_unused = [](int tp, int gtp, int dp, std::vector<int> unused) {
    return nn::MeshDegrees{.tp = tp, .gtp = gtp, .dp = dp, .unused = std::move(unused)};
  };
  // A replica without ranks leaves one rank. The dense model is the one of meshes with unused places.
  const auto expected = updated_on({.degrees = with_unused(1, 1, 2, {1})});
  for (const nn::MeshDegrees& degrees :
       {with_unused(2, 2, 2, {3}), with_unused(3, 1, 2, {1}), with_unused(1, 3, 2, {1, 2}), with_unused(2, 2, 1, {0})})
    for (const bool zero : {false, true}) expect_equal(expected, {.degrees = degrees, .zero = zero});
}

// The update of each matrix, computed alone from the logical tensors of one rank.
TEST(MatrixUpdate, UpdatesEachMatrixAlone) {
  const MuonCase it{.degrees = dense(1, 1, 1), .model = quant::DType::fp64};
  const auto got = updated_on(it);
  const models::DecoderConfig model = balanced_model();
  for (const shard::ParameterSpec& spec : decoder_parameters(model, {.tp_size = 1})) {
    if (!spec.is_hidden_matrix) continue;
    for (const shard::MatrixBlock& matrix : shard::matrix_blocks(spec)) {
      const std::int64_t first = matrix.box.row * matrix.box.cols, count = matrix.box.elements();
      std::vector<double> master, momentum(static_cast<std::size_t>(count)), u(momentum);
      for (std::int64_t i = 0; i < count; ++i) master.push_back(value_of(spec.name, "master", first + i));
      for (int number = 1; number <= kMuonUpdates; ++number) {
        for (std::int64_t i = 0; i < count; ++i) {
          const double g = 0.5 * value_of(spec.name, fmt::format("gradient {}", number), first + i);
          double& m = momentum[static_cast<std::size_t>(i)];
          m = 0.95 * m + 0.05 * g;
          u[static_cast<std::size_t>(i)] = 0.05 * g + 0.95 * m;
        }
        ops::newton_schulz({.u = u.data(),
                            .x = u.data(),
                            .rows = matrix.box.rows,
                            .cols = matrix.box.cols,
                            .type = quant::DType::fp64},
                           5);
        const double scale = ops::muon_scale(ops::MuonScale::moonshot, matrix.box.rows, matrix.box.cols);
        for (std::size_t i = 0; i < u.size(); ++i)
          master[i] = master[i] * (1 - kMuonRate * 0.1) - kMuonRate * scale * u[i];
      }
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_NEAR(got.at("master/" + spec.name)[static_cast<std::size_t>(first + i)],
                    master[static_cast<std::size_t>(i)], 1e-12)
            << spec.name << " " << matrix.name;
    }
  }
}

}  // namespace
}  // namespace tessera::train::testing
