#include "tessera/hub/convert/hf_weights.h"

#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {
using namespace testing;
using quant::DType;

class HfWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_llama(root_ / "c", odd_llama(false), DType::fp32);
    convert(root_ / "c", root_ / "hf");
  }
  TemporaryFolder root_;
};

// Boxes that split every tensor by rows and columns, read into a buffer with gaps between the rows.
TEST_F(HfWeightsTest, BoxesEqualTheWholeTensor) {
  HfWeights weights(root_ / "hf");
  const checkpoint::CheckpointReader reader(root_ / "c");
  for (const LogicalTensor& tensor : logical_of(odd_llama(false))) {
    const layout::Shape shape = layout::matrix_shape(tensor.dims);
    std::vector<float> all(static_cast<std::size_t>(shape.elements())), got;
    reader.read({.name = tensor.name, .dims = tensor.dims, .local = whole(shape), .data = all.data()});
    for (std::int64_t row = 0; row < shape.rows; row += 7)
      for (std::int64_t col = 0; col < shape.cols; col += 9) {
        const layout::Box box{row, std::min<std::int64_t>(11, shape.rows - row), col,
                              std::min<std::int64_t>(5, shape.cols - col)};
        const std::int64_t stride = box.cols + 3;
        got.assign(static_cast<std::size_t>(2 + box.rows * stride), -7.0f);
        weights.read({.name = tensor.name,
                      .dims = tensor.dims,
                      .local = {.pieces = {{box, 2, stride}}, .size = static_cast<std::int64_t>(got.size())},
                      .data = got.data()});
        for (std::int64_t i = 0; i < box.rows; ++i)
          for (std::int64_t k = 0; k < stride; ++k)
            ASSERT_EQ(got[static_cast<std::size_t>(2 + i * stride + k)],
                      k < box.cols ? all[static_cast<std::size_t>((row + i) * shape.cols + col + k)] : -7.0f)
                << tensor.name << " row " << row + i << " column " << col + k;
      }
  }
}

TEST_F(HfWeightsTest, NumbersOfRanksMayBeSummed) {
  models::DecoderConfig config = odd_llama(false);
  HfWeights weights(root_ / "hf");
  std::vector<std::int64_t> numbers = weights.non_finite().numbers();
  EXPECT_EQ(numbers.size(), 2 * hf_tensors(config).size());
  NonFiniteCounts counts;
  counts.add("a", 0, 0);
  counts.add("b", 1, 2);
  counts.add("a", 3, 0);
  EXPECT_EQ(counts.numbers(), (std::vector<std::int64_t>{3, 0, 1, 2}));
  counts.set_numbers({0, 0, 5, 6});
  EXPECT_EQ(non_finite_lines(counts.to_json()),
            std::vector<std::string>{"tensor 'b': 5 values are NaN, 6 are infinite"});
}

}  // namespace
}  // namespace tessera::hub
