#include "tessera/bench/routing.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>

#include "tessera/ops/aten_types.h"
#include "tessera/ops/device/stream_scope.h"
#include "tessera/train/update/master_values.h"
#include "tessera/train/update/weight_cast.h"

namespace tessera::bench {
namespace {

// The factor by which the embeddings are larger than their usual initial values, whose standard deviation is 0.02. The
// outputs of blocks are then small beside the embeddings.
constexpr double kSpread = 1000;

// Multiplies each row of the weights whose names end with `name` by factor(row).
void scale_rows(runtime::Runtime& runtime, std::string_view name, const std::function<double(std::int64_t)>& factor) {
  const shard::ParallelGroups& parallel = runtime.parallel();
  const ops::StreamScope scope(parallel.device, parallel.compute->stream());
  train::WeightCast cast(runtime);
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.name.ends_with(name)) continue;
    train::MasterValues masters(parameter, runtime.parallel());
    const quant::DType type = masters.type();
    for (const layout::Piece& piece : parameter.local_state.pieces) {
      if (piece.box.rows == 0 || piece.box.cols == 0) continue;
      std::byte* first = masters.data() + shard::bytes_of(piece.offset, type);
      const at::Tensor rows = ops::view_of(first, {(piece.box.rows - 1) * piece.stride + piece.box.cols}, type,
                                           ops::to_device(parallel.device))
                                  .as_strided({piece.box.rows, piece.box.cols}, {piece.stride, 1});
      at::Tensor factors = at::empty({piece.box.rows, 1}, at::kDouble);
      for (std::int64_t row = 0; row < piece.box.rows; ++row)
        factors.mutable_data_ptr<double>()[row] = factor(piece.box.row + row);
      rows.mul_(factors.to(rows.options()));
    }
    masters.store();
    cast.cast({&id, 1});
    runtime.program().publish(id);
  }
}

}  // namespace

void set_routing(runtime::Runtime& runtime, Routing routing) {
  scale_rows(runtime, "embedding.weight", [](std::int64_t) { return kSpread; });
  if (routing == Routing::skewed)
    scale_rows(runtime, "router.weight", [](std::int64_t expert) { return 1.0 / static_cast<double>(expert + 1); });
}

double expert_load(std::span<const std::int64_t> counts, std::int64_t experts) {
  double load = 0;
  for (std::size_t first = 0; first < counts.size(); first += static_cast<std::size_t>(experts)) {
    const std::span<const std::int64_t> layer = counts.subspan(first, static_cast<std::size_t>(experts));
    const auto total = static_cast<double>(std::accumulate(layer.begin(), layer.end(), std::int64_t{0}));
    const auto most = static_cast<double>(*std::ranges::max_element(layer));
    if (total > 0) load = std::max(load, most * static_cast<double>(experts) / total);
  }
  return load;
}

}  // namespace tessera::bench
