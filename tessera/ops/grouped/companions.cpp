#include "tessera/ops/grouped/companions.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "tessera/base/error.h"
#include "tessera/ops/device/cached_memory.h"
#include "tessera/ops/grouped/grouped.h"
#include "tessera/ops/grouped/grouped_formats.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kOwnRows = 40;

struct OwnOperands {
  at::Tensor x, dy, w;
};
using Products = std::array<at::Tensor, 3>;  // fprop, dgrad and wgrad of OwnOperands

// The selections have one block. If `transform` is true, the rows are transformed.
RowQuantization own_quantization(const at::Tensor& rows, const quant::Encoding& encoding, const Selection& selection,
                                 bool transform = false) {
  return {.encoding = encoding,
          .whole = grouped_scales(encoding, amaxes_of_rows(rows, selection, RowMatrices::experts, transform)),
          .transform = transform};
}
StackFactor own_factor(const at::Tensor& w, const Selection& selection, const quant::Encoding& encoding, Sides side,
                       quant::ProductKernel kernel) {
  const WholeScale scales = grouped_scales(encoding, amaxes_of_stack(w, selection.local));
  return kernel == quant::ProductKernel::native ? code_stack(w, selection.local, encoding, scales, side)
                                                : decode_stack(w, selection.local, encoding, scales);
}

// The products of all rows. The gradient of the weights overwrites `w`.
Products products_of(const ExpertProducts& kind, const at::Tensor& x, const at::Tensor& dy, at::Tensor& w,
                     const Selection& rows, const quant::StackRounding& rounding) {
  Products products;
  if (kind.format == quant::Format::bf16) {
    products = {grouped_fprop(x, w, rows), grouped_dgrad(dy, w, rows), w};
    grouped_wgrad(dy, x, rows, w, false);
    return products;
  }
  const quant::Encoding of_x = input_encoding(kind.format), of_dy = gradient_encoding(kind.format, kind.recipe);
  RowQuantization dy_rows = own_quantization(dy, of_dy, rows),
                  dy_columns = own_quantization(dy, of_dy, rows, kind.transform);
  dy_rows.rounding = dy_columns.rounding = rounding;
  const auto factor = [&](const quant::Encoding& encoding, Sides side, quant::ProductKernel kernel) {
    return own_factor(w, rows, encoding, side, kernel);
  };
  products = {
      grouped_fprop(x, own_quantization(x, of_x, rows),
                    factor(weight_encoding(kind.format), Sides::rows, kind.kernels.fprop), rows),
      grouped_dgrad(dy, dy_rows, factor(columnwise_encoding(kind.format), Sides::columns, kind.kernels.dgrad), rows),
      w};
  grouped_wgrad({.rows = dy, .as = dy_columns}, {.rows = x, .as = own_quantization(x, of_x, rows, kind.transform)},
                rows, w, false, kind.kernels.wgrad);
  return products;
}

// Computes the products of `own` in a selection with two experts. `own` belongs to expert `place`, and the other expert
// has `others` rows. The selection also has `unused` allocated rows without choices.
Products own_products(const ExpertProducts& kind, const OwnOperands& own, std::int64_t place, std::int64_t others,
                      std::int64_t unused) {
  const std::int64_t out = own.w.size(0), in = own.w.size(1), first = place == 0 ? 0 : others;
  at::Tensor choices = at::zeros({kOwnRows + others + unused, 1}, at::TensorOptions(own.x.device()).dtype(at::kInt));
  choices.narrow(0, 0, kOwnRows).fill_(place);
  choices.narrow(0, kOwnRows, others).fill_(1 - place);
  choices.narrow(0, kOwnRows + others, unused).fill_(2);
  const Selection rows = select_rows(choices, {.first = 0, .count = 2, .all = 3}, 1);
  const at::Tensor x = at::randn({rows.room, in}, own.x.options()), dy = at::randn({rows.room, out}, own.x.options());
  at::Tensor w = at::randn({2 * out, in}, own.x.options());
  x.narrow(0, first, kOwnRows).copy_(own.x);
  dy.narrow(0, first, kOwnRows).copy_(own.dy);
  w.narrow(0, place * out, out).copy_(own.w);
  // The number of the first expert gives `own` the same random numbers in each place.
  const at::Tensor step = at::zeros({1}, choices.options().dtype(at::kLong));
  const quant::StackRounding rounding{.site = {.matrix = static_cast<std::uint32_t>(1 - place)},
                                      .step = kind.rounds_randomly ? step.const_data_ptr<std::int64_t>() : nullptr};
  const Products all = products_of(kind, x, dy, w, rows, rounding);
  return {all[0].narrow(0, first, kOwnRows), all[1].narrow(0, first, kOwnRows), all[2].narrow(0, place * out, out)};
}

}  // namespace

void check_companions(const ExpertProducts& products, at::Device device) {
  const std::int64_t out = products.out, in = products.in;
  const CachedMemoryScope memory(base::cuda_device(device.index()));
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kBFloat16);
  const OwnOperands own{at::randn({kOwnRows, in}, options), at::randn({kOwnRows, out}, options),
                        at::randn({out, in}, options)};
  const Products few = own_products(products, own, 0, 3, 0), many = own_products(products, own, 1, 700, 1000);
  constexpr std::array kNames{"fprop", "dgrad", "wgrad"};
  for (std::size_t i = 0; i < few.size(); ++i)
    if (!at::equal(few[i], many[i]))
      throw Error(
          "experts: the bits of {} [{} x {}] in {} depend on the rows of other experts: this version of libtorch's "
          "grouped products gives results that depend on the mesh",
          kNames[i], out, in, name_of(products.format));
}

}  // namespace tessera::ops
