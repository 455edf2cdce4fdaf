// Measures how well the planner uses its arenas, on the steps of real models.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <utility>

#include "tessera/models/architectures/llama.h"
#include "tessera/models/registry.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/predict/dry_options.h"

namespace tessera::predict {
namespace {

constexpr double kMaxRatio = 1.1;  // largest arena relative to live bytes, for budgets of at least twice the minimum

struct Model {
  const char* name;
  bool tied;
};

// Computes the largest number of bytes that are live at the same time.
class Live {
 public:
  // Adds bytes that are live from position `begin` until before position `end`.
  void add(int begin, int end, std::int64_t bytes) {
    changes_[begin] += bytes;
    changes_[end] -= bytes;
  }
  std::int64_t greatest() const {
    std::int64_t now = 0, most = 0;
    for (const auto& [position, change] : changes_) most = std::max(most, now += change);
    return most;
  }

 private:
  std::map<int, std::int64_t> changes_;
};

// Returns the live bytes of weights, from the issue of the gather to the last release. Packed bytes are live until
// their unpacking, directly before the first use. Positions are doubled to represent this point.
std::int64_t live_gathered(const schedule::Schedule& schedule) {
  Live live;
  for (const schedule::Residency& it : schedule.residencies) {
    const auto unit = static_cast<std::size_t>(it.unit);
    live.add(2 * it.issue, 2 * (schedule.unpacks(it.unit) ? it.wait : it.last), schedule.gather_bytes[unit]);
    live.add(2 * it.wait - 1, 2 * it.last, schedule.unpacked_bytes[unit]);
  }
  return live.greatest();
}

// Returns the live bytes of gradients, from the first write to the end of the sum.
std::int64_t live_reduced(const schedule::Schedule& schedule) {
  Live live;
  for (const schedule::Reduction& it : schedule.reductions)
    live.add(it.first, it.finish + 1, schedule.reduce_bytes[static_cast<std::size_t>(it.unit)]);
  return live.greatest();
}

class PlanArena : public ::testing::TestWithParam<std::tuple<Model, nn::Recompute>> {
 protected:
  void check(int gtp, int microbatches, std::int64_t coalesce_bytes) {
    const auto [name, recompute] = GetParam();
    const std::filesystem::path configs = TESSERA_CONFIGS;
    models::DecoderConfig model =
        models::decoder_of(*models::read_model_config(models::find_model_config(name.name, configs)));
    model.tie_word_embeddings = name.tied;
    const shard::ParameterTypes types{.model = quant::DType::bf16, .wire = quant::DType::bf16};
    std::vector<schedule::ParameterSize> sizes;
    DryOptions options = dense_options(std::make_shared<models::LlamaConfig>(model), types, {.gtp = gtp});
    options.step.recompute = recompute;
    const DryStep step = dry_step(options);
    for (const PlannedParameter& each : planned_parameters(step, types)) sizes.push_back(each.size);
    const schedule::Trace trace = step.trace(microbatches);
    auto plan = [&](std::int64_t gather_budget, std::int64_t reduce_budget) {
      return schedule::plan(trace, sizes, {gather_budget, reduce_budget, coalesce_bytes});
    };
    const schedule::Schedule least = plan(schedule::kMinimum, schedule::kMinimum);
    for (const std::int64_t halves : {4, 5, 6, 8, 11, 16, 32, 100}) {
      const std::int64_t gathers = halves * least.gather_arena / 2, reductions = halves * least.reduce_arena / 2;
      const schedule::Schedule schedule = plan(gathers, reductions + least.scratch);
      SCOPED_TRACE(fmt::format("gtp {}, {} microbatches, coalesced up to {}, {} times the smallest", gtp, microbatches,
                               coalesce_bytes, static_cast<double>(halves) / 2));
      EXPECT_LE(static_cast<double>(schedule.gather_arena), kMaxRatio * static_cast<double>(live_gathered(schedule)));
      // The unit of vectors is in use through the whole backward pass. A unit may not fit into the bytes before it.
      const std::int64_t hole = *std::ranges::max_element(schedule.reduce_bytes);
      EXPECT_LE(static_cast<double>(schedule.reduce_arena - hole),
                kMaxRatio * static_cast<double>(live_reduced(schedule)));
      EXPECT_LE(schedule.gather_arena, gathers);
      EXPECT_LE(schedule.reduce_arena, reductions);
    }
  }
};

TEST_P(PlanArena, HoldsLiveBytes) {
  for (const int gtp : {2, 4, 8})
    for (const int microbatches : {1, 3}) {
      const bool coalesced = (gtp == 4) == (microbatches == 1);
      check(gtp, microbatches, coalesced ? 1 << 20 : 0);
    }
}

// With number formats, packed bytes are free after unpacking. Compares the same budgets with plans that keep packed
// bytes.
TEST(PlanArenaFormats, FreeingPackedBytesSavesGathersAndMemory) {
  const std::filesystem::path configs = TESSERA_CONFIGS;
  const models::DecoderConfig model =
      models::decoder_of(*models::read_model_config(models::find_model_config("llama3-8b", configs)));
  const shard::ParameterTypes types{.model = quant::DType::bf16, .wire = quant::DType::bf16};
  DryOptions options = dense_options(std::make_shared<models::LlamaConfig>(model), types, {.gtp = 4});
  const schedule::Trace trace = dry_step(options).trace(2);
  for (const quant::Format format : {quant::Format::nvfp4, quant::Format::mxfp8, quant::Format::fp8}) {
    std::vector<schedule::ParameterSize> sizes, whole;
    const shard::FormatPolicy wire{.format = format,
                                   .rules = {{"output.*", quant::Format::bf16}, {"embedding.*", quant::Format::bf16}}};
    options.step.runtime.wire = wire;
    for (const PlannedParameter& each : planned_parameters(dry_step(options), types)) {
      sizes.push_back(each.size);
      whole.push_back(each.size);
      whole.back().gathered += std::exchange(whole.back().unpacked, 0);
    }
    for (const std::int64_t budget :
         {std::int64_t{0}, std::int64_t{2} << 30, std::int64_t{4} << 30, std::int64_t{8} << 30, schedule::kUnlimited}) {
      const schedule::Schedule two = schedule::plan(trace, sizes, {.gather_budget = budget});
      const schedule::Schedule one = schedule::plan(trace, whole, {.gather_budget = budget});
      std::cout << fmt::format("{}, budget {}: arena {} bytes, {} gathers; packed bytes kept: {} bytes, {} gathers\n",
                               name_of(format), budget == schedule::kUnlimited ? -1 : budget, two.gather_arena,
                               two.residencies.size(), one.gather_arena, one.residencies.size());
      EXPECT_LE(two.gather_arena, std::max(budget, one.gather_arena));
      if (budget >= std::int64_t{4} << 30) {
        EXPECT_LE(two.residencies.size(), one.residencies.size());
      }
      if (budget == schedule::kUnlimited) {
        EXPECT_LT(static_cast<double>(two.gather_arena), 0.9 * static_cast<double>(one.gather_arena));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, PlanArena,
    ::testing::Combine(::testing::Values(Model{"llama3-8b", false}, Model{"llama3-8b", true},
                                         Model{"llama3-70b", false}, Model{"llama3-70b", true},
                                         Model{"llama-demo", false}, Model{"llama-demo", true},
                                         Model{"llama-tiny-odd", false}, Model{"llama-tiny-odd", true}),
                       ::testing::Values(nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full)),
    [](const auto& info) {
      std::string name = std::get<0>(info.param).name;
      std::ranges::replace(name, '-', '_');
      return name + (std::get<0>(info.param).tied ? "_tied_" : "_") + std::string(nn::name_of(std::get<1>(info.param)));
    });

}  // namespace
}  // namespace tessera::predict
