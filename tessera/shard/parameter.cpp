#include "tessera/shard/parameter.h"

#include "tessera/base/error.h"
#include "tessera/layout/home.h"

namespace tessera::shard {
namespace {

// A GEMM reads the local buffer as one matrix: its pieces must be rows of one width, stacked densely.
void check_dense(const layout::LocalLayout& local, const std::string& name) {
  std::int64_t at = 0;
  for (const layout::Piece& piece : local.pieces) {
    const std::int64_t width = local.pieces.front().box.cols;
    TESSERA_CHECK(piece.box.cols == width && piece.stride == width && piece.offset == at,
                  "parameter '{}': the compute layout of a rank must stack rows of one width densely", name);
    at += piece.box.elements();
  }
  TESSERA_CHECK(at == local.size, "parameter '{}': a compute layout has no padding, but {} of {} elements are covered",
                name, at, local.size);
}

}  // namespace

ParameterLayouts layouts_of(const ParameterSpec& spec, int gtp_size) {
  const layout::Layout& compute = spec.compute;
  const layout::Shape shape = layout::matrix_shape(spec.dims);
  TESSERA_CHECK(compute.shape == shape, "parameter '{}': layout of {} x {} for a logical shape of {} x {}", spec.name,
                compute.shape.rows, compute.shape.cols, shape.rows, shape.cols);
  layout::validate(compute, layout::Cover::all);
  if (!spec.sharded) return {compute, layout::repeat(compute, gtp_size)};
  ParameterLayouts layouts{.home = layout::unique_home(compute)};
  layouts.storage = layout::cut_local_rows(layouts.home, gtp_size);
  layout::validate(layouts.storage, layout::Cover::exact);
  return layouts;
}

ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, int tp_rank, int gtp_rank,
                                int gtp_size) {
  const layout::Layout& compute = spec.compute;
  TESSERA_CHECK(tp_rank >= 0 && tp_rank < compute.size(), "parameter '{}': tp rank {} of a layout over {}", spec.name,
                tp_rank, compute.size());
  ShardedParameter parameter;
  parameter.types = types;
  ParameterLayouts layouts = layouts_of(spec, gtp_size);
  parameter.home = std::move(layouts.home);
  parameter.storage = std::move(layouts.storage);

  const auto tp = static_cast<std::size_t>(tp_rank);
  const auto place = static_cast<std::size_t>(tp_rank + compute.size() * gtp_rank);
  parameter.local_compute = compute.ranks[tp];
  parameter.local_home = parameter.home.ranks[tp];
  parameter.local_storage = parameter.storage.ranks[place];
  check_dense(parameter.local_compute, spec.name);

  const auto elements = static_cast<std::size_t>(parameter.local_storage.size);
  parameter.weight = base::Buffer(elements * base::size_of(types.model));
  parameter.weight.fill_zero();
  if (parameter.has_master()) parameter.master = base::Buffer(elements * base::size_of(types.accumulator));
  parameter.master.fill_zero();
  if (spec.trainable) parameter.main_grad = base::Buffer(elements * base::size_of(types.accumulator));
  parameter.main_grad.fill_zero();
  parameter.spec = std::move(spec);
  return parameter;
}

}  // namespace tessera::shard
