#include "tessera/shard/materialize.h"

#include <algorithm>

#include "tessera/layout/redistribute.h"
#include "tessera/shard/encoded.h"

namespace tessera::shard {
namespace {

// The storage layout seen by the gtp group of one tp slot, and what each of its ranks wants: that slot's whole home
// part.
layout::Layout storage_of_slot(const layout::Layout& storage, int tp_rank, int tp_size, int gtp_size) {
  std::vector<int> ranks;
  for (int gtp = 0; gtp < gtp_size; ++gtp) ranks.push_back(tp_rank + tp_size * gtp);
  return layout::select(storage, ranks);
}

// Runs them as one exchange where none needs packing, else one after the other. Returns the fence of the last.
base::Fence run_all(comm::Communicator& group, const std::vector<comm::Movement>& movements) {
  const auto is_contiguous = [](const comm::Movement& each) { return each.redistribution->is_contiguous(); };
  if (movements.size() > 1 && std::ranges::all_of(movements, is_contiguous)) return run_together(group, movements);
  base::Fence done;
  for (const comm::Movement& each : movements)
    done = each.redistribution->run(group, each.source, each.target, each.type);
  return done;
}

}  // namespace

Materializer::Materializer(const ShardedParameter& parameter, const Parallel& parallel) {
  const int tp = parallel.tp_rank(), tp_size = parallel.tp_size();
  const int gtp = parallel.gtp_rank(), gtp_size = parallel.gtp_size();
  if (is_unpacked(parameter.spec))
    unpacked_bytes_ =
        base::align_up(static_cast<std::size_t>(bytes_of(parameter.local_compute.size, parameter.types.model)));
  for (const Plane& plane : parameter.planes) {
    PlaneWay way{.offset = bytes_};
    if (parameter.spec.sharded && gtp_size > 1) {
      const layout::Layout home = layout::repeat(layout::select(plane.layouts.home, {tp}), gtp_size);
      way.over_gtp.emplace(storage_of_slot(plane.layouts.storage, tp, tp_size, gtp_size), home, gtp);
      way.gtp_bytes = plane.bytes(way.over_gtp->elements_received());
    }
    if (plane.layouts.home != plane.layouts.compute) {
      way.over_tp.emplace(plane.layouts.home, plane.layouts.compute, tp);
      way.tp_bytes = plane.bytes(way.over_tp->elements_received());
    }
    if (way.over_gtp || way.over_tp)
      bytes_ += base::align_up(static_cast<std::size_t>(plane.bytes(plane.local_compute.size)));
    received_bytes_ += way.gtp_bytes + way.tp_bytes;
    ways_.push_back(std::move(way));
  }
  for (std::size_t p = 0; p < ways_.size(); ++p) {
    if (!ways_[p].over_gtp || !ways_[p].over_tp) continue;
    ways_[p].between = bytes_;
    const Plane& plane = parameter.planes[p];
    bytes_ += base::align_up(static_cast<std::size_t>(plane.bytes(plane.local_home.size)));
  }
}

void Materializer::unpack(ShardedParameter& parameter, std::byte* gathered, std::byte* unpacked,
                          const quant::Kernels& kernels) const {
  if (unpacked_bytes_ == 0) return;
  const auto arrived = [&](std::size_t plane) {
    return moves() ? gathered + ways_[plane].offset : parameter.planes[plane].data.data();
  };
  const quant::Quantized source =
      encoded_matrix(parameter, arrived(0), parameter.planes.size() > 1 ? arrived(1) : nullptr);
  kernels.dequantize(source, extent_of(parameter.local_compute), *parameter.spec.encoding,
                     reinterpret_cast<quant::bfloat16*>(unpacked));
}

void Materializer::add_first_hops(const ShardedParameter& parameter, std::byte* buffer,
                                  std::vector<comm::Movement>& movements) const {
  for (std::size_t p = 0; p < ways_.size(); ++p) {
    const PlaneWay& way = ways_[p];
    if (!way.over_gtp) continue;
    movements.push_back({.redistribution = &*way.over_gtp,
                         .source = parameter.planes[p].data.data(),
                         .target = buffer + (way.over_tp ? way.between : way.offset),
                         .type = parameter.planes[p].spec.type});
  }
}

base::Fence Materializer::start(const ShardedParameter& parameter, Groups groups, std::byte* buffer,
                                const base::Fence& free, const Recording& recording) const {
  std::int64_t gtp_bytes = 0, tp_bytes = 0;
  std::vector<comm::Movement> over_gtp, over_tp;
  add_first_hops(parameter, buffer, over_gtp);
  for (std::size_t p = 0; p < ways_.size(); ++p) {
    const PlaneWay& way = ways_[p];
    gtp_bytes += way.gtp_bytes;
    tp_bytes += way.tp_bytes;
    if (!way.over_tp) continue;
    const void* home = way.over_gtp ? buffer + way.between : parameter.planes[p].data.data();
    over_tp.push_back({&*way.over_tp, home, buffer + way.offset, parameter.planes[p].spec.type});
  }
  comm::Communicator& first = over_gtp.empty() ? groups.tp : groups.gtp;
  first.lane().wait(free);
  first.lane().wait(parameter.published);
  // Where nothing moves, the stored planes can be read once `free` and the publish are done.
  base::Fence done = over_gtp.empty() && over_tp.empty() ? first.lane().record() : base::Fence();
  if (!over_gtp.empty()) {
    const base::LaneMark mark = recording.mark(schedule::Activity::gather, gtp_bytes);
    mark.begin(groups.gtp.lane());
    done = mark.end(groups.gtp.lane(), run_all(groups.gtp, over_gtp));
  }
  if (!over_tp.empty()) {
    groups.tp.lane().wait(done);
    const base::LaneMark mark = recording.mark(schedule::Activity::gather_tp, tp_bytes);
    mark.begin(groups.tp.lane());
    done = mark.end(groups.tp.lane(), run_all(groups.tp, over_tp));
  }
  return done;
}

}  // namespace tessera::shard
