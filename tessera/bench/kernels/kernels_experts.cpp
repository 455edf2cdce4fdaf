// Kernel cases of a layer with experts. The rank owns all experts. The choices come from random logits, so the experts
// have nearly equal loads.
#include "tessera/bench/kernels/kernels_cases.h"
#include "tessera/ops/experts/capacity.h"
#include "tessera/ops/experts/permute.h"
#include "tessera/ops/experts/weighted_swiglu.h"
#include "tessera/ops/grouped/grouped.h"
#include "tessera/ops/grouped/grouped_formats.h"
#include "tessera/ops/router/router.h"
#include "tessera/ops/router/router_gradient.h"

namespace tessera::bench {
namespace {

using quant::DType;

// Random choices of experts, and the rows that are selected for these choices.
struct Chosen {
  ops::Routing routing;
  ops::Selection rows;
};
Chosen choose(const Cases& c, std::uint64_t seed) {
  const KernelBench& b = c.bench();
  Chosen chosen;
  chosen.routing = ops::route(c.normal({b.tokens, b.experts}, c.wide(), seed), {.k = b.choices, .normalizes = true});
  chosen.rows = ops::select_rows(chosen.routing.experts, {.first = 0, .count = b.experts, .all = b.experts}, 1);
  return chosen;
}

void add_router(Cases& c) {
  const std::int64_t tokens = c.bench().tokens, hidden = c.bench().hidden, experts = c.bench().experts;
  const double x = c.rows(hidden), scores = static_cast<double>(tokens * experts) * c.size(c.wide()),
               weight = static_cast<double>(experts * hidden) * c.size(c.wide());
  c.cases.push_back(
      {"experts_router", x + weight + scores, [=, &c](std::uint64_t seed) {
         const at::Tensor rows = c.normal({tokens, hidden}, seed), w = c.normal({experts, hidden}, c.wide(), seed + 1);
         return [=] { ops::router_logits(rows, w); };
       }});
  c.cases.push_back({"experts_router_dgrad", scores + weight + 2 * x, [=, &c](std::uint64_t seed) {
                       const at::Tensor dlogits = c.normal({tokens, experts}, c.wide(), seed),
                                        w = c.normal({experts, hidden}, c.wide(), seed + 1),
                                        dx = c.normal({tokens, hidden}, seed + 2);
                       return [=] { ops::add_router_dgrad(dx, dlogits, w); };
                     }});
  c.cases.push_back({"experts_router_wgrad", scores + x + weight, [=, &c](std::uint64_t seed) {
                       const at::Tensor dlogits = c.normal({tokens, experts}, c.wide(), seed),
                                        rows = c.normal({tokens, hidden}, seed + 1);
                       at::Tensor dw = c.empty({experts, hidden}, c.wide());
                       return [=]() mutable { ops::router_wgrad(dlogits, rows, dw, false); };
                     }});
}

// Returns the rule of DeepSeek-V3, with 4 of 8 groups. If the experts do not form such groups, there is one group.
ops::RouterOptions rule_with_groups(const KernelBench& b) {
  const bool has_groups = b.experts % 8 == 0 && b.experts >= 16 && b.choices <= b.experts / 2;
  return {.k = b.choices,
          .normalizes = true,
          .score = ops::RouterScore::sigmoid,
          .groups = has_groups ? 8 : 1,
          .chosen_groups = has_groups ? 4 : 1,
          .scale = 2.5};
}

void add_choices(Cases& c) {
  const KernelBench& b = c.bench();
  const ops::RouterOptions options{.k = b.choices, .normalizes = true};
  const double scores = static_cast<double>(b.tokens * b.experts) * c.size(c.wide()),
               weights = static_cast<double>(b.tokens * b.choices) * c.size(c.wide()),
               choices = static_cast<double>(b.tokens * b.choices) * c.size(DType::i32);
  c.cases.push_back({"experts_route", 2 * scores + weights + choices, [=, &c, &b](std::uint64_t seed) {
                       const at::Tensor logits = c.normal({b.tokens, b.experts}, c.wide(), seed);
                       return [=] { ops::route(logits, options); };
                     }});
  c.cases.push_back({"experts_route_groups", 2 * scores + weights + choices, [=, &c, &b](std::uint64_t seed) {
                       const at::Tensor logits = c.normal({b.tokens, b.experts}, c.wide(), seed),
                                        bias = c.normal({b.experts}, c.wide(), seed + 1);
                       return [=, rule = rule_with_groups(b)] { ops::route(logits, rule, bias); };
                     }});
  c.cases.push_back({"experts_route_backward", 2 * scores + 2 * weights + choices, [=, &c, &b](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const ops::RoutingGradients gradients{
                           .weights = c.normal({b.tokens, b.choices}, c.wide(), seed + 1),
                           .probabilities = c.normal({b.experts}, c.wide(), seed + 2),
                           .logsumexp_squares = c.normal({1}, c.wide(), seed + 3)};
                       const at::Tensor counted = ops::make({b.tokens}, at::kBool, c.device()).fill_(true);
                       return [=] { ops::route_backward(chosen.routing, options, gradients, counted); };
                     }});
  c.cases.push_back({"experts_sums", scores + choices, [=, &c, &b](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor counted = ops::make({b.tokens}, at::kBool, c.device()).fill_(true);
                       return [=] { ops::router_sums(chosen.routing, counted); };
                     }});
  c.cases.push_back({"experts_capacity", weights + 2 * choices, [=, &c, &b](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const std::int64_t all = b.experts, capacity = ops::capacity_of(1, b.tokens, b.choices, all);
                       return [=] {
                         ops::within_capacity(chosen.routing.experts, chosen.routing.weights,
                                              {.first = 0, .count = all, .all = all}, 1, capacity);
                       };
                     }});
  c.cases.push_back({"experts_select", 3 * choices, [=, &c, &b](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       return [=, all = b.experts] {
                         ops::select_rows(chosen.routing.experts, {.first = 0, .count = all, .all = all}, 1);
                       };
                     }});
}

void add_rows(Cases& c) {
  const KernelBench& b = c.bench();
  const std::int64_t rows = b.tokens * b.choices, hidden = b.hidden, width = b.expert_width;
  const double token_bytes = c.rows(hidden), row_bytes = c.rows(b.choices * hidden), part = c.rows(b.choices * width);
  c.cases.push_back({"experts_take_rows", token_bytes + row_bytes, [=, &c, &b](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor x = c.normal({b.tokens, hidden}, seed + 1);
                       return [=] { ops::take_rows(x, chosen.rows); };
                     }});
  c.cases.push_back({"experts_combine", token_bytes + row_bytes, [=, &c](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor y = c.normal({rows, hidden}, seed + 1);
                       return [=] { ops::combine_rows(y, chosen.rows); };
                     }});
  c.cases.push_back({"experts_swiglu", 3 * part, [=, &c](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor gate_up = c.normal({rows, 2 * width}, seed + 1),
                                        weights = c.normal({rows}, c.wide(), seed + 2);
                       return [=] { ops::weighted_swiglu(gate_up, weights, chosen.rows); };
                     }});
  for (const bool again : {false, true})
    c.cases.push_back({again ? "experts_swiglu_backward_again" : "experts_swiglu_backward", (again ? 6 : 5) * part,
                       [=, &c](std::uint64_t seed) {
                         const Chosen chosen = choose(c, seed);
                         const at::Tensor gate_up = c.normal({rows, 2 * width}, seed + 1),
                                          weights = c.normal({rows}, c.wide(), seed + 2),
                                          dout = c.normal({rows, width}, seed + 3);
                         return [=] { ops::weighted_swiglu_backward(dout, gate_up, weights, chosen.rows, again); };
                       }});
}

void add_grouped_products(Cases& c) {
  const KernelBench& b = c.bench();
  const std::int64_t rows = b.tokens * b.choices, in = b.hidden, out = 2 * b.expert_width, experts = b.experts;
  const double weights = static_cast<double>(experts * out * in) * c.size(b.type),
               bytes = c.rows(b.choices * (in + out)) + weights;
  const double operations = 2 * static_cast<double>(rows) * static_cast<double>(in * out);
  for (const bool forward : {true, false})
    c.cases.push_back({forward ? "experts_gemm_fprop" : "experts_gemm_dgrad", bytes,
                       [=, &c](std::uint64_t seed) -> std::function<void()> {
                         const Chosen chosen = choose(c, seed);
                         const at::Tensor x = c.normal({rows, forward ? in : out}, seed + 1),
                                          w = c.normal({experts * out, in}, seed + 2);
                         if (forward) return [=] { ops::grouped_fprop(x, w, chosen.rows); };
                         return [=] { ops::grouped_dgrad(x, w, chosen.rows); };
                       },
                       operations});
  c.cases.push_back({"experts_gemm_wgrad", bytes,
                     [=, &c](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor dy = c.normal({rows, out}, seed + 1), x = c.normal({rows, in}, seed + 2);
                       at::Tensor dw = c.empty({experts * out, in}, c.bench().type);
                       return [=]() mutable { ops::grouped_wgrad(dy, x, chosen.rows, dw, false); };
                     },
                     operations});
}

// The products of experts in a number format, with the casts of their rows. The stack is decoded.
void add_products_in(Cases& c, quant::Format format) {
  const KernelBench& b = c.bench();
  const std::int64_t rows = b.tokens * b.choices, in = b.hidden, out = 2 * b.expert_width, experts = b.experts;
  const double stack = static_cast<double>(experts * out * in) * c.size(b.type), x = c.rows(b.choices * in),
               y = c.rows(b.choices * out), operations = 2 * static_cast<double>(rows) * static_cast<double>(in * out);
  const auto scales = [](const at::Tensor& matrix, const ops::Selection& selection) {
    return ops::amaxes_of_rows(matrix, selection, ops::RowMatrices::experts);
  };
  const auto encoding = input_encoding(format), of_weight = weight_encoding(format);
  const std::string name(name_of(format));
  c.cases.push_back({"experts_decode_stack_" + name, 2 * stack, [=, &c](std::uint64_t seed) {
                       const at::Tensor w = c.normal({experts * out, in}, seed);
                       const ops::WholeScale whole = ops::grouped_scales(of_weight, ops::amaxes_of_stack(w, experts));
                       return [=] { ops::decode_stack(w, experts, of_weight, whole); };
                     }});
  c.cases.push_back(
      {"experts_gemm_fprop_" + name, 3 * x + y + stack,
       [=, &c](std::uint64_t seed) {
         const Chosen chosen = choose(c, seed);
         const at::Tensor left = c.normal({rows, in}, seed + 1), w = c.normal({experts * out, in}, seed + 2);
         const ops::StackFactor decoded =
             ops::decode_stack(w, experts, of_weight, ops::grouped_scales(of_weight, ops::amaxes_of_stack(w, experts)));
         const ops::RowQuantization as{.encoding = encoding,
                                       .whole = ops::grouped_scales(encoding, scales(left, chosen.rows))};
         return [=] { ops::grouped_fprop(left, as, decoded, chosen.rows); };
       },
       operations});
  c.cases.push_back({"experts_gemm_wgrad_" + name, 3 * (x + y) + stack,
                     [=, &c](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor dy = c.normal({rows, out}, seed + 1), right = c.normal({rows, in}, seed + 2);
                       const ops::RowQuantization dy_as{
                           .encoding = encoding, .whole = ops::grouped_scales(encoding, scales(dy, chosen.rows))},
                           as{.encoding = encoding, .whole = ops::grouped_scales(encoding, scales(right, chosen.rows))};
                       at::Tensor dw = c.empty({experts * out, in}, c.bench().type);
                       return [=]() mutable {
                         ops::grouped_wgrad({.rows = dy, .as = dy_as}, {.rows = right, .as = as}, chosen.rows, dw,
                                            false);
                       };
                     },
                     operations});
}

// The products of codes in fp8 with the casts of their rows, and the factors that a stack of codes has in them.
void add_products_of_codes(Cases& c) {
  const KernelBench& b = c.bench();
  const std::int64_t rows = b.tokens * b.choices, in = b.hidden, out = 2 * b.expert_width, experts = b.experts;
  if (in % quant::kCodesMultiple != 0 || out % quant::kCodesMultiple != 0) return;
  const double stack = static_cast<double>(experts * out * in), x = c.rows(b.choices * in), y = c.rows(b.choices * out),
               operations = 2 * static_cast<double>(rows) * static_cast<double>(in * out);
  const quant::Encoding encoding = weight_encoding(quant::Format::fp8);
  const auto scaled = [=](const at::Tensor& matrix, const ops::Selection& selection) {
    const at::Tensor amaxes = ops::amaxes_of_rows(matrix, selection, ops::RowMatrices::experts);
    return ops::RowQuantization{.encoding = encoding, .whole = ops::grouped_scales(encoding, amaxes)};
  };
  const auto factor = [=](const at::Tensor& w, ops::Sides side) {
    return ops::code_stack(w, experts, encoding, ops::grouped_scales(encoding, ops::amaxes_of_stack(w, experts)), side);
  };
  for (const bool forward : {true, false}) {
    const ops::Sides side = forward ? ops::Sides::rows : ops::Sides::columns;
    c.cases.push_back(
        {forward ? "experts_code_stack" : "experts_code_stack_transposed", 3 * stack, [=, &c](std::uint64_t seed) {
           const at::Tensor w = c.normal({experts * out, in}, seed);
           const ops::WholeScale whole = ops::grouped_scales(encoding, ops::amaxes_of_stack(w, experts));
           return [=] { ops::code_stack(w, experts, encoding, whole, side); };
         }});
    c.cases.push_back({forward ? "experts_gemm_fprop_codes" : "experts_gemm_dgrad_codes",
                       forward ? 2 * x + y + stack : 2 * y + x + stack,
                       [=, &c](std::uint64_t seed) -> std::function<void()> {
                         const Chosen chosen = choose(c, seed);
                         const at::Tensor left = c.normal({rows, forward ? in : out}, seed + 1);
                         const ops::StackFactor w = factor(c.normal({experts * out, in}, seed + 2), side);
                         const ops::RowQuantization as = scaled(left, chosen.rows);
                         if (forward) return [=] { ops::grouped_fprop(left, as, w, chosen.rows); };
                         return [=] { ops::grouped_dgrad(left, as, w, chosen.rows); };
                       },
                       operations});
  }
  c.cases.push_back({"experts_gemm_wgrad_codes", 2 * (x + y) + 2 * stack,
                     [=, &c](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor dy = c.normal({rows, out}, seed + 1), right = c.normal({rows, in}, seed + 2);
                       const ops::RowQuantization dy_as = scaled(dy, chosen.rows), as = scaled(right, chosen.rows);
                       at::Tensor dw = c.empty({experts * out, in}, c.bench().type);
                       return [=]() mutable {
                         ops::grouped_wgrad({.rows = dy, .as = dy_as}, {.rows = right, .as = as}, chosen.rows, dw,
                                            false, quant::ProductKernel::native);
                       };
                     },
                     operations});
}

// The recipe of nvfp4: wgrad transforms both factors, and rounds the gradient stochastically.
void add_recipe(Cases& c) {
  const KernelBench& b = c.bench();
  const std::int64_t rows = b.tokens * b.choices, in = b.hidden, out = 2 * b.expert_width, experts = b.experts;
  const double stack = static_cast<double>(experts * out * in) * c.size(b.type), x = c.rows(b.choices * in),
               y = c.rows(b.choices * out), operations = 2 * static_cast<double>(rows) * static_cast<double>(in * out);
  const auto amaxes = [](const at::Tensor& matrix, const ops::Selection& selection) {
    return ops::amaxes_of_rows(matrix, selection, ops::RowMatrices::experts, /*transform=*/true);
  };
  c.cases.push_back({"experts_amaxes_transformed", x, [=, &c](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor right = c.normal({rows, in}, seed + 1);
                       return [=] { amaxes(right, chosen.rows); };
                     }});
  const auto encoding = input_encoding(quant::Format::nvfp4);
  c.cases.push_back(
      {"experts_gemm_wgrad_nvfp4_recipe", 3 * (x + y) + stack,
       [=, &c](std::uint64_t seed) {
         const Chosen chosen = choose(c, seed);
         const at::Tensor dy = c.normal({rows, out}, seed + 1), right = c.normal({rows, in}, seed + 2),
                          step = ops::make({1}, at::kLong, c.device()).fill_(1);
         const auto as = [&](const at::Tensor& matrix) {
           return ops::RowQuantization{.encoding = encoding,
                                       .whole = ops::grouped_scales(encoding, amaxes(matrix, chosen.rows)),
                                       .transform = true};
         };
         ops::RowQuantization dy_as = as(dy);
         dy_as.rounding.step = step.const_data_ptr<std::int64_t>();
         at::Tensor dw = c.empty({experts * out, in}, c.bench().type);
         return [=, x_as = as(right), keeps = step]() mutable {
           ops::grouped_wgrad({.rows = dy, .as = dy_as}, {.rows = right, .as = x_as}, chosen.rows, dw, false);
         };
       },
       operations});
}

void add_products_in_formats(Cases& c) {
  if (c.bench().type != DType::bf16) return;
  const std::int64_t rows = c.bench().tokens * c.bench().choices, width = c.bench().hidden;
  c.cases.push_back({"experts_amaxes", c.rows(c.bench().choices * width), [=, &c](std::uint64_t seed) {
                       const Chosen chosen = choose(c, seed);
                       const at::Tensor x = c.normal({rows, width}, seed + 1);
                       return [=] { ops::amaxes_of_rows(x, chosen.rows, ops::RowMatrices::experts); };
                     }});
  for (const quant::Format format :
       {quant::Format::fp8, quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4})
    add_products_in(c, format);
  if (c.device().is_cuda()) add_products_of_codes(c);
  add_recipe(c);
}

}  // namespace

void add_experts(Cases& c) {
  add_router(c);
  add_choices(c);
  add_rows(c);
  add_grouped_products(c);
  add_products_in_formats(c);
}

}  // namespace tessera::bench
