#include "tessera/models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

class OnlyTrains : public Model {
 public:
  nn::Loss forward(const Batch&, double) override { return {}; }
};

TEST(Model, NamesTheFunctionThatAModelLacks) {
  OnlyTrains model;
  nn::KeyValueCache cache;
  const auto expect = [](auto call, const char* name) {
    try {
      call();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(name));
    }
  };
  expect([&] { model.make_cache(3); }, "Model::make_cache");
  expect([&] { model.logits({}, {}); }, "Model::logits");
  expect([&] { model.blocks(); }, "Model::blocks");
  expect([&] { model.begin({}); }, "Model::begin");
  expect([&] { model.run({}, {}, {}); }, "Model::run");
  expect([&] { model.loss({}, {}, 1); }, "Model::loss");
}

}  // namespace
}  // namespace tessera::models
