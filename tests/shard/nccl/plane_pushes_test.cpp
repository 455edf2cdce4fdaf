// Tests pushes of weights with two planes between GPU ranks. Data and scales by tile must arrive, in one gather at a
// time and in several gathers as one exchange.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/shard/make_parameter.h"
#include "tessera/shard/ways/materialize.h"
#include "tests/comm/nccl/run.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::shard {
namespace {

using layout::Shape;

// Returns byte `at` of a whole plane, the same on every rank that stores it.
std::byte byte_of(int round, std::size_t weight, std::size_t plane, std::int64_t at) {
  return static_cast<std::byte>(static_cast<std::size_t>(at * 7 + round * 31) + weight * 13 + plane * 101);
}

class PlanePushes : public comm::NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (IsSkipped()) return;
    world_ = make_world({});
    parallel_.emplace(dense_parallel(*world_, 1, ranks(), 1));
    const std::vector<PlaneSpec> planes{{.name = "data", .type = quant::DType::u8},
                                        {.name = "scales", .tile = {.rows = 3, .cols = 4}}};
    // Tile sizes divide neither dimension. Some ranks store no part of the last weight.
    for (const Shape shape : {Shape{26, 10}, Shape{13, 9}, Shape{301, 77}, Shape{2, 5}}) {
      ParameterSpec spec{.name = "weight",
                         .dims = {shape.rows, shape.cols},
                         .compute = layout::replicated(shape, 1),
                         .planes = planes};
      weights_.push_back(make_parameter(spec, {}, {.parts = ranks()}, {.part = rank(), .device = device()}));
      parallel_->provide(weights_.back(), {.parts = ranks()});
    }
    for (const ShardedParameter& weight : weights_) {
      ways_.emplace_back(weight, *parallel_, schedule::Way());
      places_.push_back(bytes_);
      bytes_ += ways_.back().bytes();
    }
  }

  comm::Communicator& gathers() { return parallel_->of(0, mesh::Transfer::gather); }

  void write(int round) {
    for (std::size_t w = 0; w < weights_.size(); ++w)
      for (std::size_t p = 0; p < weights_[w].planes.size(); ++p) {
        Plane& plane = weights_[w].planes[p];
        std::vector<std::byte> bytes(plane.data.size());
        for (std::size_t at = 0; at < bytes.size(); ++at)
          bytes[at] = byte_of(round, w, p, first_byte(plane) + static_cast<std::int64_t>(at));
        base::copy_bytes(plane.data.data(), bytes.data(), bytes.size());
      }
  }
  // Returns the offset of this rank's part in the whole plane. The part's rows are contiguous.
  static std::int64_t first_byte(const Plane& plane) {
    if (plane.local_storage.pieces.empty()) return 0;
    return plane.bytes(plane.local_storage.pieces.front().box.row * plane.layouts.compute.shape.cols);
  }

  void expect_all(int round, const std::byte* memory) {
    for (std::size_t w = 0; w < weights_.size(); ++w)
      for (std::size_t p = 0; p < weights_[w].planes.size(); ++p) {
        const Plane& plane = weights_[w].planes[p];
        std::vector<std::byte> bytes(static_cast<std::size_t>(plane.bytes(plane.local_compute.size)));
        base::copy_bytes(bytes.data(), memory + places_[w] + ways_[w].offset_of(p), bytes.size());
        for (std::size_t at = 0; at < bytes.size(); ++at)
          ASSERT_EQ(bytes[at], byte_of(round, w, p, static_cast<std::int64_t>(at)))
              << "round " << round << ", weight " << w << ", " << plane.spec.name << ", byte " << at;
      }
  }

  std::unique_ptr<comm::World> world_;
  std::optional<ParallelGroups> parallel_;
  std::vector<ShardedParameter> weights_;
  std::vector<Materializer> ways_;
  std::vector<std::size_t> places_;  // byte offset of each weight in the target of the gathers
  std::size_t bytes_ = 0;
};

TEST_F(PlanePushes, ArriveInSingleAndSharedExchanges) {
  base::Buffer shared(bytes_, device());
  EXPECT_EQ(gathers().share({shared.data(), shared.size()}), "");
  for (int round = 0; round < 6; ++round) {
    write(round);
    if (round % 2 == 0) {
      for (std::size_t w = 0; w < weights_.size(); ++w)
        ways_[w].start(weights_[w], {gathers()}, shared.data() + places_[w], base::Fence()).synchronize();
    } else {
      std::vector<comm::Movement> movements;
      for (std::size_t w = 0; w < weights_.size(); ++w)
        ways_[w].add_first_hops(weights_[w], shared.data() + places_[w], movements);
      ASSERT_EQ(movements.size(), 2 * weights_.size());
      run_together(gathers(), movements).synchronize();
    }
    expect_all(round, shared.data());
    parallel_->world->barrier().synchronize();  // no rank writes the next round before all have read this one
  }
  gathers().share({});
}

}  // namespace
}  // namespace tessera::shard
