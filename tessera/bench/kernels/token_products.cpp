#include "tessera/bench/kernels/token_products.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/bench/timed_program.h"
#include "tessera/bench/timed_steps.h"
#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/nn/parallel/parallel_products.h"
#include "tessera/ops/work.h"
#include "tessera/shard/host_time.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t kElementBytes = 2;  // bf16
constexpr std::size_t kMaxEvents = 1000;

at::Tensor meta_matrix(std::int64_t rows, std::int64_t cols) {
  return at::empty({rows, cols}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
}

// Returns this rank's part of the weight [width, hidden].
nn::Weight add_weight(runtime::ParameterTable& parameters, const TokenProduct& product) {
  const schedule::ParameterId id = parameters.add(
      {.name = "w",
       .dims = {product.width, product.hidden},
       .compute = layout::cut_rows({product.width, product.hidden}, {{"rows", product.width}}, product.ranks)});
  return {.id = id, .rows = product.width / product.ranks, .cols = product.hidden};
}

void run_product(const nn::Context& context, const nn::Weight& weight, const TokenProduct& product) {
  const nn::PassState pass{.context = context, .id = {0}};
  if (product.gathers)
    nn::gathered_product(pass, weight, nn::OperandKind::input,
                         meta_matrix(product.tokens / product.ranks, product.hidden), product.tokens, ops::Sides::rows);
  else
    nn::scattered_product(pass.in(schedule::Pass::backward), weight, nn::OperandKind::gradient,
                          {.matrix = meta_matrix(product.tokens, weight.rows), .operands = {}});
}

}  // namespace

double TokenProduct::transfer_seconds(const TokenRates& rates) const {
  return static_cast<double>(tokens / ranks * (ranks - 1) * hidden * kElementBytes) / rates.bytes_per_second;
}

double TokenProduct::product_seconds(const TokenRates& rates) const {
  return 2 * static_cast<double>(tokens * hidden * (width / ranks)) / rates.flops_per_second;
}

double TokenProduct::exposed_seconds(const TokenRates& rates) const {
  return std::max(0.0, transfer_seconds(rates) - product_seconds(rates) * (ranks - 1) / ranks);
}

double TokenProduct::hiding_width(const TokenRates& rates) const {
  return rates.flops_per_second / rates.bytes_per_second * ranks;
}

TokenProductRow measure_token_product(const TokenProduct& product, const TokenRates& rates) {
  TESSERA_CHECK(product.tokens % product.ranks == 0 && product.width % product.ranks == 0,
                "a product of {} tokens and width {}: expected multiples of {} ranks", product.tokens, product.width,
                product.ranks);
  TokenProductRow row{.product = product,
                      .expected = product.product_seconds(rates) + product.exposed_seconds(rates),
                      .exposed_expected = product.exposed_seconds(rates)};
  std::mutex mutex;
  comm::LocalOptions options;
  options.link = comm::Link{.bytes_per_second = rates.bytes_per_second};
  options.virtual_clock = true;
  comm::run_local(product.ranks, options, [&](comm::World& world) {
    const at::AutoGradMode gradients(false);
    shard::ParallelGroups parallel =
        shard::make_parallel_groups(world, nn::rank_layout({.tp = product.ranks}), /*with_casts=*/true);
    runtime::Runtime runtime(parallel, {.model = quant::DType::bf16}, {});
    const std::vector<double> no_segments(kMaxEvents);  // WorkScope below advances the clock
    TimedProgram program(runtime, no_segments);
    nn::Context context{.program = program, .sequence_parallel = true};
    context.products.tp_overlap = true;
    context.products.tp_chunks = product.ranks;
    const nn::Weight weight = add_weight(runtime.parameters(), product);
    program.begin_step(schedule::StepKind::evaluate, 1);
    program.begin_microbatch(0);
    const double begin = shard::host_seconds(parallel);
    {
      const ops::WorkScope scope([&](const ops::Work& work) {
        if (work.kind == ops::WorkKind::product) pass_time(parallel, work.flops / rates.flops_per_second);
      });
      run_product(context, weight, product);
    }
    const double seconds = shard::host_seconds(parallel) - begin;
    const double exposed = runtime.statistics().exposed_tp_seconds;
    program.end_microbatch(0);
    program.end_step();
    const std::lock_guard lock(mutex);
    row.measured = std::max(row.measured, seconds);
    row.exposed_measured = std::max(row.exposed_measured, exposed);
  });
  return row;
}

std::vector<TokenProductRow> token_product_rows(const TokenRates& rates) {
  std::vector<TokenProductRow> rows;
  for (const bool gathers : {true, false})
    for (const int ranks : {2, 4})
      for (const double share : {0.25, 0.5, 1.0, 2.0}) {
        TokenProduct product{.ranks = ranks, .gathers = gathers};
        product.width = static_cast<std::int64_t>(std::ceil(share * product.hiding_width(rates) / ranks)) * ranks;
        rows.push_back(measure_token_product(product, rates));
      }
  return rows;
}

std::string token_product_text(const std::vector<TokenProductRow>& rows, const TokenRates& rates) {
  std::string text = fmt::format(
      "\nproducts whose tokens travel in pieces over tp, virtual time; ms\n\n{:>4} {:8} {:>7} {:>9} {:>9} {:>9} "
      "{:>18} {:>18}\n{:>4} {:8} {:>7} {:>9} {:>9} {:>9} {:>9}{:>9} {:>9}{:>9}\n",
      "", "", "", "width /", "", "", "time", "exposed", "tp", "transfer", "width", "hiding", "transfer", "product",
      "expected", "measured", "expected", "measured");
  for (const TokenProductRow& row : rows)
    text += fmt::format("{:>4} {:8} {:>7} {:>9.2f} {:>9.3f} {:>9.3f} {:>9.3f}{:>9.3f} {:>9.3f}{:>9.3f}\n",
                        row.product.ranks, row.product.gathers ? "gather" : "scatter", row.product.width,
                        static_cast<double>(row.product.width) / row.product.hiding_width(rates),
                        row.product.transfer_seconds(rates) * 1e3, row.product.product_seconds(rates) * 1e3,
                        row.expected * 1e3, row.measured * 1e3, row.exposed_expected * 1e3, row.exposed_measured * 1e3);
  return text;
}

nlohmann::ordered_json token_product_json(const std::vector<TokenProductRow>& rows) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const TokenProductRow& row : rows)
    table.push_back({{"tp", row.product.ranks},
                     {"transfer", row.product.gathers ? "gather" : "scatter"},
                     {"tokens", row.product.tokens},
                     {"hidden_size", row.product.hidden},
                     {"width", row.product.width},
                     {"expected_s", row.expected},
                     {"measured_s", row.measured},
                     {"exposed_expected_s", row.exposed_expected},
                     {"exposed_measured_s", row.exposed_measured}});
  return table;
}

}  // namespace tessera::bench
