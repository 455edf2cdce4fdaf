#include "tessera/bench/kernels/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::bench {
namespace {

using ops::ProductCall, ops::ProductSizes;

// Makes every token a separate sequence. The sizes of products depend only on the number of tokens, and the number of
// sequences is not limited.
predict::DryOptions product_options(const ProductBench& bench, std::int64_t tokens) {
  settings::TrainConfig config{
      .backend = settings::Backend::local, .mesh = {.tp = bench.tp}, .micro_batch = tokens, .seq_len = 1};
  config.dtype = quant::DType::bf16;
  return settings::dry_options(settings::resolve(std::move(config), bench.model, settings::Use::plan), {});
}

// Returns the weight's name without its block: "mlp.gate_up" for "layers.1.mlp.gate_up.weight".
std::string name_in_block(std::string_view name) {
  constexpr std::string_view kEnd = ".weight";
  if (name.ends_with(kEnd)) name.remove_suffix(kEnd.size());
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = name.rfind('.'); at != std::string_view::npos && at > 0; at = name.rfind('.', at - 1)) {
    // Start of the part before this point; 0 if there is no earlier point.
    const std::size_t begin = name.rfind('.', at - 1) + 1;
    if (std::ranges::all_of(name.substr(begin, at - begin), is_digit)) return std::string(name.substr(at + 1));
  }
  return std::string(name);
}

std::string_view call_name(ProductCall call) {
  return call == ProductCall::fprop ? "fprop" : call == ProductCall::dgrad ? "dgrad" : "wgrad";
}

// The products for one number of tokens.
class ModelProducts {
 public:
  explicit ModelProducts(const std::string& only) : only_(only) {}

  void add(const predict::DryStep& step) {
    for (std::size_t at = 0; at < step.work.size(); ++at)
      for (const ops::Work& work : step.work[at])
        if (work.kind == ops::WorkKind::product) add(weight_of(step, at, work.product.call), work.product);
  }

  std::vector<ProductRow> rows() {
    std::ranges::stable_sort(found_, {}, [](const Found& it) { return std::pair(it.weight, it.sizes.call); });
    std::vector<ProductRow> rows;
    for (const auto& [weight, sizes] : found_)
      rows.push_back({.name = fmt::format("{} {}", weights_[weight], call_name(sizes.call)),
                      .rows = sizes.rows,
                      .cols = sizes.cols,
                      .inner = sizes.inner,
                      .left_transposed = sizes.call == ProductCall::wgrad,
                      .right_transposed = sizes.call == ProductCall::fprop,
                      .seconds = {}});
    return rows;
  }

 private:
  struct Found {
    std::size_t weight;  // index into weights_
    ProductSizes sizes;
  };

  // A weight is consumed before its product; the gradient of the weight is produced after the product.
  static const shard::ParameterSpec& weight_of(const predict::DryStep& step, std::size_t at, ProductCall call) {
    const schedule::ParameterId id = step.microbatch.at(call == ProductCall::wgrad ? at : at - 1).parameter;
    return step.parameters.at(static_cast<std::size_t>(id));
  }

  void add(const shard::ParameterSpec& weight, ProductSizes sizes) {
    if (weight.dims.size() != 2) return;  // the gradient of a bias is a sum and not a product
    if (sizes.rows == 0 || sizes.cols == 0 || sizes.inner == 0) return;
    const std::string name = name_in_block(weight.name);
    if (fmt::format("{} {}", name, call_name(sizes.call)).find(only_) == std::string::npos) return;
    sizes.accumulate = false;  // the benchmark measures the product without an addition to the result
    if (std::ranges::find(found_, sizes, &Found::sizes) != found_.end()) return;
    const auto known = std::ranges::find(weights_, name);
    found_.push_back({.weight = static_cast<std::size_t>(known - weights_.begin()), .sizes = sizes});
    if (known == weights_.end()) weights_.push_back(name);
  }

  const std::string& only_;
  std::vector<std::string> weights_;
  std::vector<Found> found_;
};

}  // namespace

std::vector<ProductRow> products_of(const ProductBench& bench) {
  std::vector<ProductRow> rows;
  for (const std::int64_t tokens : bench.tokens) {
    predict::DryOptions options = product_options(bench, tokens);
    ModelProducts products(bench.only);
    for (const int rank : predict::kinds_of_ranks(options)) {
      options.rank = rank;
      products.add(predict::dry_step(options));
    }
    for (ProductRow& row : products.rows()) rows.push_back(std::move(row));
  }
  if (rows.empty()) throw InputError("--only {}: no product's name contains it", bench.only);
  return rows;
}

int ProductRow::best() const {
  return static_cast<int>(std::ranges::min_element(seconds) - seconds.begin());
}

std::string product_text(const std::vector<ProductRow>& rows, double least) {
  std::string text, table;
  for (const ProductRow& row : rows) {
    const int best = row.best();
    const double first_seconds = row.seconds.front(), best_seconds = row.seconds[static_cast<std::size_t>(best)];
    text += fmt::format("  {:22} [{:6}, {:6}] x {:6}  {:7.3f} ms {:6.1f} TFLOP/s, candidate {} of {}: x {:.3f}\n",
                        row.name, row.rows, row.cols, row.inner, first_seconds * 1e3,
                        row.flops() / first_seconds / 1e12, best, row.seconds.size(), first_seconds / best_seconds);
    if (best_seconds < (1 - least) * first_seconds)
      table += fmt::format("    GemmChoice{{{}, {}, {}, {}, {}, {}}},\n", row.rows, row.cols, row.inner,
                           row.left_transposed, row.right_transposed, best);
  }
  return text + "for ops/gemm/gemm_table.h:\n" + table;
}

}  // namespace tessera::bench
