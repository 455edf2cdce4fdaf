// Tests the list of products of `bench products`. The list comes from dry runs of models and contains every size once.
#include "tessera/bench/kernels/products.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using testing::ElementsAre, testing::ElementsAreArray;

ProductBench products_bench(const std::string& model, std::int64_t tp) {
  return {.model = models::read_model_config(models::find_model_config(model, TESSERA_CONFIGS)),
          .tp = tp,
          .tokens = {10},
          .only = {}};
}

std::vector<std::string> lines_of(const ProductBench& bench) {
  std::vector<std::string> lines;
  for (const ProductRow& row : products_of(bench)) {
    EXPECT_TRUE(row.seconds.empty());
    lines.push_back(fmt::format("{} {} {} {} {}{}", row.name, row.rows, row.cols, row.inner,
                                row.left_transposed ? "t" : "n", row.right_transposed ? "t" : "n"));
  }
  return lines;
}

// y = x w^T, dx = dy w and dw = dy^T x of a weight with 10 tokens.
void add_products(std::vector<std::string>& lines, const std::string& name,
                  const std::vector<std::pair<int, int>>& weights) {
  for (const auto& [out, in] : weights) lines.push_back(fmt::format("{} fprop 10 {} {} nt", name, out, in));
  for (const auto& [out, in] : weights) lines.push_back(fmt::format("{} dgrad 10 {} {} nn", name, in, out));
  for (const auto& [out, in] : weights) lines.push_back(fmt::format("{} wgrad {} {} 10 tn", name, out, in));
}

// Sizes: rows of q, k and v together; columns of the attention output; feed-forward columns; vocabulary rows.
struct Decoder {
  int hidden, qkv, attention, ffn, vocabulary;
  std::string output;  // the name of the output layer's weight
};
std::vector<std::string> products_of_whole(const Decoder& it) {
  std::vector<std::string> lines;
  add_products(lines, "attention.qkv", {{it.qkv, it.hidden}});
  add_products(lines, "attention.output", {{it.hidden, it.attention}});
  add_products(lines, "mlp.gate_up", {{2 * it.ffn, it.hidden}});
  add_products(lines, "mlp.down", {{it.hidden, it.ffn}});
  add_products(lines, it.output, {{it.vocabulary, it.hidden}});
  return lines;
}

// All blocks have the same products, which are listed once. The output layer uses the embedding's weight.
TEST(Products, ListsTheProductsOfAModel) {
  const Decoder decoder{.hidden = 256,
                        .qkv = 8 * 32 + 2 * 4 * 32,
                        .attention = 8 * 32,
                        .ffn = 688,
                        .vocabulary = 4096,
                        .output = "embedding"};
  EXPECT_THAT(lines_of(products_bench("llama-demo", 1)), ElementsAreArray(products_of_whole(decoder)));
}

// 8 query heads, 4 key/value heads, 688 columns and 4096 rows over 3 ranks. Each size of a part is listed.
TEST(Products, ListsTheProductsOfUnevenParts) {
  std::vector<std::string> expected;
  add_products(expected, "attention.qkv", {{2 * 32 + 2 * 32, 256}, {3 * 32 + 4 * 32, 256}});
  add_products(expected, "attention.output", {{256, 2 * 32}, {256, 3 * 32}});
  add_products(expected, "mlp.gate_up", {{2 * 229, 256}, {2 * 230, 256}});
  add_products(expected, "mlp.down", {{256, 229}, {256, 230}});
  add_products(expected, "embedding", {{1365, 256}, {1366, 256}});
  EXPECT_THAT(lines_of(products_bench("llama-demo", 3)), testing::UnorderedElementsAreArray(expected));
}

TEST(Products, ListsTheProductsOfAnotherArchitecture) {
  const Decoder decoder{.hidden = 59,
                        .qkv = 15 * 14 + 2 * 3 * 14,
                        .attention = 15 * 14,
                        .ffn = 71,
                        .vocabulary = 131,
                        .output = "output"};
  EXPECT_THAT(lines_of(products_bench("qwen3-tiny-odd", 1)), ElementsAreArray(products_of_whole(decoder)));
  std::vector<std::string> parts;
  add_products(parts, "attention.qkv", {{5 * 14 + 2 * 14, 59}});
  add_products(parts, "attention.output", {{59, 5 * 14}});
  add_products(parts, "mlp.gate_up", {{2 * 23, 59}, {2 * 24, 59}});
  add_products(parts, "mlp.down", {{59, 23}, {59, 24}});
  add_products(parts, "output", {{43, 59}, {44, 59}});
  EXPECT_THAT(lines_of(products_bench("qwen3-tiny-odd", 3)), testing::UnorderedElementsAreArray(parts));
}

// A bias is added, and its gradient is a sum. It has no matrix product.
TEST(Products, OmitsBiases) {
  const Decoder decoder{.hidden = 57,
                        .qkv = 21 * 6 + 2 * 7 * 6,
                        .attention = 21 * 6,
                        .ffn = 83,
                        .vocabulary = 131,
                        .output = "embedding"};
  EXPECT_THAT(lines_of(products_bench("qwen2-tiny-odd", 1)), ElementsAreArray(products_of_whole(decoder)));
}

TEST(Products, OnlySelectsByName) {
  ProductBench bench = products_bench("llama-demo", 1);
  bench.only = "down wgrad";
  bench.tokens = {7, 3000};  // more tokens than the model's longest sequence
  EXPECT_THAT(lines_of(bench), ElementsAre("mlp.down wgrad 256 688 7 tn", "mlp.down wgrad 256 688 3000 tn"));
  bench.only = "router";
  EXPECT_THAT([&] { products_of(bench); }, ThrowsMessage<InputError>(HasSubstr("--only router: no product")));
}

// The text ends with the table's lines for products that gain time.
TEST(Products, PrintsLinesForTheTable) {
  std::vector<ProductRow> rows = products_of(products_bench("llama-demo", 1));
  rows.resize(2);
  rows[0].seconds = {2e-3, 1e-3};
  rows[1].seconds = {1e-3, 2e-3};
  const std::string text = product_text(rows);
  EXPECT_THAT(text, testing::HasSubstr("attention.qkv fprop    [    10,    512] x    256    2.000 ms"));
  EXPECT_THAT(text, testing::EndsWith("for ops/gemm/gemm_table.h:\n    GemmChoice{10, 512, 256, false, true, 1},\n"));
}

}  // namespace
}  // namespace tessera::bench
