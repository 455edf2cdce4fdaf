// Tests delayed scaling on the host.
#include "tessera/quant/formats/delayed_scaling.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tessera::quant {
namespace {

// The scaling state of one tensor.
struct OneTensor {
  std::vector<float> history;
  Element element = Element::e4m3;
  float multiplier = 5, inverse = 0;

  void step(AmaxChoice choice, int margin = 0) {
    update_multipliers({.history = history.data(),
                        .elements = &element,
                        .multipliers = &multiplier,
                        .inverses = &inverse,
                        .length = static_cast<std::int64_t>(history.size()),
                        .tensors = 1,
                        .choice = choice,
                        .margin = margin});
  }
};

TEST(DelayedScaling, MovesTheHistoryAndClearsTheFirstSlot) {
  OneTensor tensor{.history = {4, 1, 2, 3}};
  tensor.step(AmaxChoice::newest);
  EXPECT_EQ(tensor.history, (std::vector<float>{0, 2, 3, 4}));
  tensor.history[0] = 7;
  tensor.step(AmaxChoice::newest);
  EXPECT_EQ(tensor.history, (std::vector<float>{0, 3, 4, 7}));
  OneTensor short_one{.history = {4}};
  short_one.step(AmaxChoice::greatest);
  EXPECT_EQ(short_one.history, std::vector<float>{0});
  EXPECT_EQ(short_one.multiplier, 112);
}

// The amaxes of two tensors. The second may be infinite.
TEST(DelayedScaling, ASkippedStepDiscardsItsAmaxes) {
  const std::vector<Element> elements(2, Element::e4m3);
  for (const float amax : {5.0F, std::numeric_limits<float>::infinity()}) {
    std::vector<float> history{4, amax, 1, 2}, multipliers{5, 6}, inverses{7, 8};
    const std::int32_t counts = 0;
    update_multipliers({.history = history.data(),
                        .elements = elements.data(),
                        .multipliers = multipliers.data(),
                        .inverses = inverses.data(),
                        .length = 2,
                        .tensors = 2,
                        .counts = &counts});
    EXPECT_EQ(history, (std::vector<float>{0, 0, 1, 2}));
    EXPECT_EQ(multipliers, (std::vector<float>{5, 6}));
    EXPECT_EQ(inverses, (std::vector<float>{7, 8}));
  }
}

TEST(DelayedScaling, InversesMayHaveAStride) {
  std::vector<float> history{4, 2}, multipliers{1, 1}, inverses(5, -1);
  const std::vector<Element> elements(2, Element::e4m3);
  const std::int32_t counts = 1;
  update_multipliers({.history = history.data(),
                      .elements = elements.data(),
                      .multipliers = multipliers.data(),
                      .inverses = inverses.data(),
                      .length = 1,
                      .tensors = 2,
                      .counts = &counts,
                      .inverse_stride = 4});
  EXPECT_EQ(inverses, (std::vector<float>{1.0F / 112, -1, -1, -1, 1.0F / 224}));
}

TEST(DelayedScaling, UsesTheNewestOrTheGreatestAmax) {
  OneTensor newest{.history = {2, 7, 4}}, greatest = newest;
  newest.step(AmaxChoice::newest);
  greatest.step(AmaxChoice::greatest);
  EXPECT_EQ(newest.multiplier, 224);
  EXPECT_EQ(newest.inverse, 1.0F / 224);
  EXPECT_EQ(greatest.multiplier, 64);
}

TEST(DelayedScaling, AppliesTheMarginToTheGreatestNumberOfTheType) {
  OneTensor tensor{.history = {2}, .element = Element::e5m2};
  tensor.step(AmaxChoice::newest, 3);
  EXPECT_EQ(tensor.multiplier, 57344.0F / 8 / 2);
}

TEST(DelayedScaling, KeepsTheMultiplierWithoutAUsableAmax) {
  for (const float amax :
       {0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e-45F}) {
    OneTensor tensor{.history = {amax}};
    tensor.step(AmaxChoice::newest);
    EXPECT_EQ(tensor.multiplier, 5) << amax;
    EXPECT_EQ(tensor.inverse, 0.2F) << amax;
  }
}

// The tensors of a slot are adjacent.
TEST(DelayedScaling, UpdatesTensorsIndependently) {
  std::vector<float> history{1, 2, 3, 10, 20, 30}, multipliers{0, 0, 0};
  const std::vector<Element> elements(3, Element::e4m3);
  update_multipliers({.history = history.data(),
                      .elements = elements.data(),
                      .multipliers = multipliers.data(),
                      .length = 2,
                      .tensors = 3});
  EXPECT_EQ(multipliers, (std::vector<float>{44.8F, 22.4F, 448.0F / 30}));
  EXPECT_EQ(history, (std::vector<float>{0, 0, 0, 1, 2, 3}));
}

}  // namespace
}  // namespace tessera::quant
