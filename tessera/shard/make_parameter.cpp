#include "tessera/shard/make_parameter.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"

namespace tessera::shard {
namespace {

// Checks that the local buffer is one dense matrix, because a GEMM reads it as a matrix.
void check_dense(const layout::LocalLayout& local, const std::string& name) {
  TESSERA_CHECK(layout::is_dense(local),
                "parameter '{}': the compute layout of a rank must be one dense matrix without padding: rows of equal "
                "width, or ranges of columns side by side; {} of its {} elements are covered",
                name, local.covered(), local.size);
}

std::vector<Plane> make_planes(const ParameterSpec& spec, const ParameterTypes& types, const ParameterLayouts& layouts,
                               const Cuts& cuts, const Place& place) {
  std::vector<Plane> planes;
  for (PlaneSpec& plane_spec : planes_of(spec, types)) {
    Plane plane;
    static_cast<RankParts&>(plane) = rank_parts(plane_layouts(spec, plane_spec, layouts), cuts, place);
    plane.spec = std::move(plane_spec);
    plane.data = base::Buffer(static_cast<std::size_t>(plane.bytes(plane.local_storage.size)), place.device);
    plane.data.fill_zero();
    planes.push_back(std::move(plane));
  }
  return planes;
}

}  // namespace

ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, const Cuts& cuts, const Place& place) {
  const layout::Layout& compute = spec.compute;
  TESSERA_CHECK(place.compute >= 0 && place.compute < compute.size(),
                "parameter '{}': compute rank {} is outside its layout over {} ranks", spec.name, place.compute,
                compute.size());
  check_encoding(spec, types);
  ShardedParameter parameter;
  parameter.types = types;
  parameter.place = place;
  const ParameterLayouts layouts = layouts_of(spec, cuts);
  parameter.by_rows = exchanges_rows(spec, layouts, types, cuts);
  parameter.row_gradients = has_row_gradients(spec, layouts, types, cuts);
  static_cast<RankParts&>(parameter) = rank_parts(layouts, cuts, place);
  check_dense(parameter.local_compute, spec.name);
  parameter.planes = make_planes(spec, types, layouts, cuts, place);

  if (spec.encoding && has_tensor_scale(*spec.encoding)) {
    parameter.tensor_scale = base::Buffer(static_cast<std::size_t>(parameter.matrices()) * sizeof(float), place.device);
    parameter.tensor_scale.fill_zero();
  }

  const std::int64_t elements = parameter.local_storage.size;
  parameter.has_split_master = splits_master(spec, types, cuts);
  if (has_master(spec, types))
    parameter.master = base::Buffer(
        static_cast<std::size_t>(master_bytes(spec, types, cuts, parameter.local_state.size)), place.device);
  parameter.master.fill_zero();
  parameter.written_by_layers = writes_main_grad(spec, layouts, types, cuts);
  TESSERA_CHECK(!parameter.written_by_layers || parameter.local_storage == parameter.local_compute,
                "parameter '{}': its layers write main_grad, but the storage layout is not the compute layout",
                spec.name);
  if (spec.trainable)
    parameter.main_grad =
        base::Buffer(static_cast<std::size_t>(bytes_of(elements, parameter.gradient_type())), place.device);
  parameter.main_grad.fill_zero();
  if (parameter.row_gradients)
    parameter.row_states = base::Buffer(static_cast<std::size_t>(elements / compute.shape.cols), place.device);
  parameter.row_states.fill_zero();
  parameter.spec = std::move(spec);
  return parameter;
}

}  // namespace tessera::shard
