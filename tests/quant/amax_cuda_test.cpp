// Compares amaxes and delayed scaling on a GPU with the host.
#include <gtest/gtest.h>

#include <memory>

#include "tests/quant/on_device.h"

namespace tessera::quant {
namespace {

class DeviceAmaxes : public OnDevice {};

TEST_F(DeviceAmaxes, RaisesTheAmaxesOfManyMatrices) {
  const std::int64_t counts[] = {0, 1, 7, 8, 31, 4096, 5003, 32768, 32769, 131071, 262144};
  std::vector<std::unique_ptr<DeviceArray<float>>> wide;
  std::vector<std::unique_ptr<DeviceArray<bfloat16>>> narrow;
  std::vector<float> start, expected;
  std::vector<AmaxTask> tasks;
  unsigned seed = 0;
  for (const std::int64_t count : counts)
    for (const std::size_t shift : {0, 1})
      for (const bool is_wide : {true, false})
        for (const bool is_special : {true, false}) {
          const auto values = is_special ? all_kinds_of_values(count, ++seed) : random_values(count, ++seed);
          const std::vector<bfloat16> rounded = rounded_values(values);
          start.push_back(seed % 5 == 0 ? 3.0F : 0.0F);
          expected.push_back(start.back());
          take_amaxes(is_wide ? source_of(values) : source_of(rounded), {1, count}, {}, {0, count},
                      {&expected.back(), 1});
          if (is_wide) {
            wide.push_back(std::make_unique<DeviceArray<float>>(values, 4 * shift));
            tasks.push_back({.source = {wide.back()->data(), DType::fp32}, .elements = count});
          } else {
            narrow.push_back(std::make_unique<DeviceArray<bfloat16>>(rounded, 2 * shift));
            tasks.push_back({.source = {narrow.back()->data(), DType::bf16}, .elements = count});
          }
        }
  DeviceArray<float> amaxes(start);
  for (std::size_t i = 0; i < tasks.size(); ++i) tasks[i].amax = amaxes.data() + i;
  kernels().take_amaxes(tasks, nullptr);
  EXPECT_EQ(amaxes.values(), expected);
}

struct HistoryOf {
  std::vector<float> history, multipliers, inverses;
  std::vector<Element> elements;
};

HistoryOf some_history(std::int64_t length, std::int64_t tensors) {
  HistoryOf result;
  const float special[] = {0, std::numeric_limits<float>::infinity(), 1e-45F, 3e38F, 1, 448};
  result.history = random_values(length * tensors, static_cast<unsigned>(length));
  for (std::size_t i = 0; i < result.history.size(); ++i) {
    result.history[i] = std::fabs(result.history[i]);
    if (i % 7 == 3) result.history[i] = special[i / 7 % 6];
  }
  for (std::int64_t tensor = 0; tensor < tensors; ++tensor) {
    result.multipliers.push_back(static_cast<float>(tensor) + 0.5F);
    result.inverses.push_back(-1);
    result.elements.push_back(tensor % 2 == 0 ? Element::e4m3 : Element::e5m2);
  }
  return result;
}

class DeviceDelayedScaling : public OnDevice {};

TEST_F(DeviceDelayedScaling, UpdatesAllTensorsLikeTheHost) {
  for (const std::int64_t length : {1, 2, 16})
    for (const std::int64_t tensors : {0, 1, 700})
      for (const AmaxChoice choice : {AmaxChoice::newest, AmaxChoice::greatest})
        for (const int margin : {0, 3}) {
          HistoryOf host = some_history(length, tensors);
          DeviceArray<float> history(host.history), multipliers(host.multipliers), inverses(host.inverses);
          DeviceArray<Element> elements(host.elements);
          DelayedScaling scaling{.history = host.history.data(),
                                 .elements = host.elements.data(),
                                 .multipliers = host.multipliers.data(),
                                 .inverses = host.inverses.data(),
                                 .length = length,
                                 .tensors = tensors,
                                 .choice = choice,
                                 .margin = margin};
          for (int step = 0; step < 3; ++step) {
            scaling = {history.data(), elements.data(), multipliers.data(), inverses.data(), length, tensors,
                       choice,         margin};
            kernels().update_multipliers(scaling, nullptr);
            scaling = {host.history.data(),
                       host.elements.data(),
                       host.multipliers.data(),
                       host.inverses.data(),
                       length,
                       tensors,
                       choice,
                       margin};
            update_multipliers(scaling);
            EXPECT_TRUE(same_bytes(history.values(), host.history));
            EXPECT_TRUE(same_bytes(multipliers.values(), host.multipliers));
            EXPECT_TRUE(same_bytes(inverses.values(), host.inverses));
          }
        }
}

TEST_F(DeviceDelayedScaling, ASkippedStepDiscardsItsAmaxes) {
  constexpr std::int64_t kTensors = 700;
  for (const float amax : {3.0F, std::numeric_limits<float>::infinity()}) {
    std::vector<float> before(2 * kTensors, 3), after = before;
    before[kTensors - 1] = amax;
    std::fill_n(after.begin(), kTensors, 0.0F);
    DeviceArray<float> history(before), multipliers(std::vector<float>(kTensors, 5)), inverses(4 * kTensors);
    DeviceArray<Element> elements(std::vector<Element>(kTensors, Element::e4m3));
    DeviceArray<std::int32_t> counts(std::vector<std::int32_t>{0});
    kernels().update_multipliers({.history = history.data(),
                                  .elements = elements.data(),
                                  .multipliers = multipliers.data(),
                                  .inverses = inverses.data(),
                                  .length = 2,
                                  .tensors = kTensors,
                                  .counts = counts.data(),
                                  .inverse_stride = 4},
                                 nullptr);
    EXPECT_EQ(history.values(), after);
    EXPECT_EQ(multipliers.values(), std::vector<float>(kTensors, 5));
  }
}

}  // namespace
}  // namespace tessera::quant
