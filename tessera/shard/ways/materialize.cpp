#include "tessera/shard/ways/materialize.h"

#include <algorithm>

#include "tessera/layout/redistribute.h"
#include "tessera/quant/formats/columnwise.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/formats/stack_part.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::shard {

base::Fence run_all(comm::Communicator& group, const std::vector<comm::Movement>& movements) {
  const auto is_contiguous = [](const comm::Movement& each) { return each.redistribution->is_contiguous(); };
  if (std::ranges::all_of(movements, is_contiguous)) return run_together(group, movements);
  base::Fence done;
  for (const comm::Movement& each : movements)
    done = each.redistribution->run(group, each.source, each.target, each.type);
  return done;
}

namespace {

// Moves the planes. A single plane may be moved by a collective, and several planes share one exchange.
base::Fence run_planes(comm::Communicator& group, const std::vector<comm::Movement>& planes) {
  const comm::Movement& first = planes.front();
  return planes.size() == 1 ? first.redistribution->run(group, first.source, first.target, first.type)
                            : run_all(group, planes);
}

quant::ColumnwiseLayout columnwise_layout_of(const ShardedParameter& parameter) {
  const Matrices of_part = matrices_of_part(parameter.spec, parameter.local_compute);
  return quant::columnwise_layout(*parameter.spec.encoding, of_part.matrix, of_part.count);
}

}  // namespace

Materializer::Materializer(const ShardedParameter& parameter, const ParallelGroups& parallel, schedule::Way way)
    : way_(std::move(way)) {
  const Place& place = parallel.place(parameter.spec.domain);
  if (is_unpacked(parameter.spec))
    unpacked_bytes_ =
        base::align_up(static_cast<std::size_t>(bytes_of(parameter.local_compute.size, parameter.types.model)));
  if (reads_columnwise(parameter.spec))
    columnwise_bytes_ = base::align_up(static_cast<std::size_t>(columnwise_layout_of(parameter).bytes()));
  for (const Plane& plane : parameter.planes) {
    PlaneWay plane_way{.offset = bytes_};
    if (parameter.spec.sharded && plane.storage.size() > 1) {
      plane_way.over_storage.emplace(plane.storage, homes_of(plane, place), plane.storing_rank);
    }
    if (plane.layouts.overlaps()) {
      plane_way.over_compute.emplace(plane.layouts.home, plane.layouts.compute, place.compute);
    }
    if (plane_way.over_storage || plane_way.over_compute)
      bytes_ += base::align_up(static_cast<std::size_t>(plane.bytes(plane.local_compute.size)));
    ways_.push_back(std::move(plane_way));
  }
  for (std::size_t p = 0; p < ways_.size(); ++p) {
    if (!ways_[p].over_storage || !ways_[p].over_compute) continue;
    ways_[p].between = bytes_;
    const Plane& plane = parameter.planes[p];
    bytes_ += base::align_up(static_cast<std::size_t>(plane.bytes(plane.local_home.size)));
  }
}

quant::Quantized Materializer::arrived(ShardedParameter& parameter, std::byte* gathered) const {
  const auto plane = [&](std::size_t number) {
    return moves() ? gathered + ways_[number].offset : parameter.planes[number].data.data();
  };
  return encoded_matrix(parameter, plane(0), parameter.planes.size() > 1 ? plane(1) : nullptr);
}

void Materializer::unpack(ShardedParameter& parameter, std::byte* gathered, std::byte* unpacked,
                          const quant::Kernels& kernels) const {
  if (unpacked_bytes_ == 0) return;
  const Matrices stack = compute_matrices(parameter);
  const auto unpack =
      unpacked_to(parameter.spec) == Unpacked::decoded ? &quant::Kernels::decode : &quant::Kernels::dequantize;
  (kernels.*unpack)(arrived(parameter, gathered), stack.matrix, *parameter.spec.encoding,
                    reinterpret_cast<quant::bfloat16*>(unpacked), stack.count);
}

quant::Transposition Materializer::columnwise_copy(ShardedParameter& parameter, std::byte* gathered,
                                                   std::byte* copy) const {
  const Matrices of_part = matrices_of_part(parameter.spec, parameter.local_compute);
  return quant::columnwise_copy(arrived(parameter, gathered), of_part.matrix, *parameter.spec.encoding, copy,
                                of_part.count);
}

quant::Quantized Materializer::columnwise_at(const ShardedParameter& parameter, std::byte* copy) const {
  return columnwise_layout_of(parameter).at(copy);
}

void Materializer::add_first_hops(const ShardedParameter& parameter, std::byte* buffer,
                                  std::vector<comm::Movement>& movements) const {
  for (std::size_t p = 0; p < ways_.size(); ++p) {
    const PlaneWay& way = ways_[p];
    if (!way.over_storage) continue;
    movements.push_back({.redistribution = &*way.over_storage,
                         .source = parameter.planes[p].data.data(),
                         .target = buffer + (way.over_compute ? way.between : way.offset),
                         .type = parameter.planes[p].spec.type});
  }
}

base::Fence Materializer::start(const ShardedParameter& parameter, Groups groups, std::byte* buffer,
                                const base::Fence& free, const Recording& recording) const {
  std::vector<comm::Movement> over_storage, over_compute;
  add_first_hops(parameter, buffer, over_storage);
  for (std::size_t p = 0; p < ways_.size(); ++p) {
    const PlaneWay& way = ways_[p];
    if (!way.over_compute) continue;
    const void* home = way.over_storage ? buffer + way.between : parameter.planes[p].data.data();
    over_compute.push_back({&*way.over_compute, home, buffer + way.offset, parameter.planes[p].spec.type});
  }
  comm::Communicator& first = over_storage.empty() && !over_compute.empty() ? *groups.compute : groups.storage;
  first.lane().wait(free);
  first.lane().wait(parameter.published());
  // If no plane is moved, the stored planes can be read after `free` and after the publish event.
  base::Fence done = over_storage.empty() && over_compute.empty() ? first.lane().record() : base::Fence();
  if (!over_storage.empty()) {
    const base::LaneMark mark = mark_of(recording, way_, mesh::Transfer::gather);
    mark.begin(groups.storage.lane());
    done = mark.end(groups.storage.lane(), run_planes(groups.storage, over_storage));
  }
  if (!over_compute.empty()) {
    groups.compute->lane().wait(done);
    const base::LaneMark mark = mark_of(recording, way_, mesh::Transfer::gather_compute);
    mark.begin(groups.compute->lane());
    done = mark.end(groups.compute->lane(), run_planes(*groups.compute, over_compute));
  }
  return done;
}

}  // namespace tessera::shard
