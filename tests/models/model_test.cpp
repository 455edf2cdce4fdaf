#include "tessera/models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/runtime/record/dry_run.h"

namespace tessera::models {
namespace {

class OnlyTrains : public Model {
 public:
  nn::Loss forward(const Batch&, const nn::PassState&, double) override { return {}; }
};

TEST(Model, NamesTheFunctionThatAModelLacks) {
  OnlyTrains model;
  runtime::DryRun program(nn::rank_layout({}), 0, {}, {});
  const nn::Context context{.program = program};
  const nn::PassState pass{.context = context, .id = {}};
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
  expect([&] { model.logits({}, {}, pass); }, "Model::logits");
  expect([&] { model.blocks(); }, "Model::blocks");
  expect([&] { model.begin({}, pass); }, "Model::begin");
  expect([&] { model.run({}, {}, {}, pass); }, "Model::run");
  expect([&] { model.loss({}, {}, pass, 1); }, "Model::loss");
}

}  // namespace
}  // namespace tessera::models
