#include "tessera/ops/experts/permute.h"

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/work.h"

namespace tessera::ops {
namespace {

const std::int64_t* tokens_of(const Selection& selection) {
  return selection.tokens.const_data_ptr<std::int64_t>();
}
const std::int64_t* slots_of(const Selection& selection) {
  return selection.slots.const_data_ptr<std::int64_t>();
}

template <typename T>
void add_rows(const at::Tensor& rows, const Selection& selection, at::Tensor& result) {
  using A = Accumulator<T>;
  const std::int64_t width = rows.size(1), tokens = result.size(0);
  at::Tensor sums = make({tokens, width}, accumulator_type(rows.scalar_type()));
  sums.zero_();
  const auto* from = static_cast<const T*>(rows.const_data_ptr());
  auto* to = static_cast<A*>(sums.mutable_data_ptr());
  for (std::int64_t row = 0; row < selection.rows(); ++row) {
    const T* source = from + row * width;
    A* sum = to + tokens_of(selection)[row] * width;
    for (std::int64_t i = 0; i < width; ++i) sum[i] += load(source[i]);
  }
  auto* out = static_cast<T*>(result.mutable_data_ptr());
  for (std::int64_t i = 0; i < tokens * width; ++i) out[i] = round_to<T>(to[i]);
}

MoveRowsArguments move_of(const at::Tensor& from, const Selection& selection, at::Tensor& to) {
  return {.type = to_dtype(from.scalar_type()),
          .tokens = selection.group_tokens,
          .k = selection.k,
          .width = from.size(1),
          .rows_in_order = selection.rows_in_order.const_data_ptr<std::int32_t>(),
          .from = from.const_data_ptr(),
          .to = to.mutable_data_ptr()};
}
MoveChoicesArguments choices_of(const at::Tensor& from, const Selection& selection, at::Tensor& to) {
  return {.type = to_dtype(from.scalar_type()),
          .choices = selection.group_tokens * selection.k,
          .rows_by_slot = selection.rows_by_slot.const_data_ptr<std::int32_t>(),
          .from = from.const_data_ptr(),
          .to = to.mutable_data_ptr()};
}

}  // namespace

at::Tensor take_rows(const at::Tensor& x, const Selection& selection) {
  const at::Tensor source = dense(x, 2, "take_rows");
  TESSERA_CHECK(source.size(0) == selection.group_tokens, "take_rows: {} tokens, expected {}", source.size(0),
                selection.group_tokens);
  at::Tensor rows = make({selection.room, source.size(1)}, source.scalar_type(), source.device());
  const std::size_t bytes = static_cast<std::size_t>(source.size(1)) * source.element_size();
  if (is_dry(source)) {
    report(memory_work("take rows", 2 * selection.expected * static_cast<std::int64_t>(bytes)));
    return rows;
  }
  if (on_cuda(source)) {
    cuda_only<cuda::take_rows>(move_of(source, selection, rows), stream_of(source));
    return rows;
  }
  const auto* from = static_cast<const std::byte*>(source.const_data_ptr());
  auto* to = static_cast<std::byte*>(rows.mutable_data_ptr());
  for (std::int64_t row = 0; row < selection.rows(); ++row)
    std::memcpy(to + static_cast<std::size_t>(row) * bytes,
                from + static_cast<std::size_t>(tokens_of(selection)[row]) * bytes, bytes);
  return rows;
}

at::Tensor combine_rows(const at::Tensor& rows, const Selection& selection) {
  const at::Tensor source = dense(rows, 2, "combine_rows");
  TESSERA_CHECK(source.size(0) == selection.room, "combine_rows: {} rows, expected {}", source.size(0), selection.room);
  at::Tensor result = make({selection.group_tokens, source.size(1)}, source.scalar_type(), source.device());
  if (is_dry(source)) {
    report(memory_work("combine rows", bytes_of({result}) + selection.expected * source.size(1) *
                                                                static_cast<std::int64_t>(source.element_size())));
    return result;
  }
  if (on_cuda(source)) {
    cuda_only<cuda::combine_rows>(move_of(source, selection, result), stream_of(source));
    return result;
  }
  dispatch_floating(to_dtype(source.scalar_type()),
                    [&](auto element) { add_rows<decltype(element)>(source, selection, result); });
  return result;
}

at::Tensor take_choices(const at::Tensor& values, const Selection& selection) {
  const at::Tensor source = dense(values, 2, "take_choices");
  TESSERA_CHECK(source.size(0) == selection.group_tokens && source.size(1) == selection.k,
                "take_choices: values [{}, {}], expected [{}, {}]", source.size(0), source.size(1),
                selection.group_tokens, selection.k);
  at::Tensor taken = make({selection.room}, source.scalar_type(), source.device());
  if (is_dry(source)) {
    report(memory_work("take choices", 2 * selection.expected * static_cast<std::int64_t>(source.element_size())));
    return taken;
  }
  if (on_cuda(source)) {
    cuda_only<cuda::take_choices>(choices_of(source, selection, taken), stream_of(source));
    return taken;
  }
  dispatch_accumulator(to_dtype(source.scalar_type()), [&](auto element) {
    using A = decltype(element);
    const auto* from = static_cast<const A*>(source.const_data_ptr());
    auto* to = static_cast<A*>(taken.mutable_data_ptr());
    for (std::int64_t row = 0; row < selection.rows(); ++row)
      to[row] = from[tokens_of(selection)[row] * source.size(1) + slots_of(selection)[row]];
  });
  return taken;
}

at::Tensor put_choices(const at::Tensor& values, const Selection& selection) {
  const at::Tensor source = dense(values, 1, "put_choices");
  TESSERA_CHECK(source.size(0) == selection.room, "put_choices: {} rows, expected {}", source.size(0), selection.room);
  const std::int64_t k = selection.k;
  at::Tensor put = make({selection.group_tokens, k}, source.scalar_type(), source.device());
  if (is_dry(source)) {
    report(memory_work("put choices", bytes_of({put})));
    return put;
  }
  if (on_cuda(source)) {
    cuda_only<cuda::put_choices>(choices_of(source, selection, put), stream_of(source));
    return put;
  }
  put.zero_();
  dispatch_accumulator(to_dtype(source.scalar_type()), [&](auto element) {
    using A = decltype(element);
    const auto* from = static_cast<const A*>(source.const_data_ptr());
    auto* to = static_cast<A*>(put.mutable_data_ptr());
    for (std::int64_t row = 0; row < selection.rows(); ++row)
      to[tokens_of(selection)[row] * k + slots_of(selection)[row]] = from[row];
  });
  return put;
}

}  // namespace tessera::ops
