#include "tessera/runtime/event_numbers.h"

#include <algorithm>
#include <numeric>

#include "tessera/comm/operation.h"

namespace tessera::runtime {

CollectiveTraffic traffic_of(const ProgramCollective& collective, const shard::ComputeGroup& group) {
  const std::int64_t all = shard::bytes_of(
      std::accumulate(collective.counts.begin(), collective.counts.end(), std::int64_t{0}), collective.type);
  const auto own = [&] {
    return shard::bytes_of(collective.counts[static_cast<std::size_t>(group.rank)], collective.type);
  };
  switch (collective.kind) {
    case ProgramCollectiveKind::all_gather:
      // Bytes are codes of fp8 numbers.
      return {.op = "all_gather",
              .given = own(),
              .received = all - own(),
              .format = collective.type == quant::DType::u8 ? quant::Format::fp8 : quant::Format::bf16};
    case ProgramCollectiveKind::reduce_scatter:
      return {.op = "reduce_scatter", .given = all, .received = (group.size - 1) * own()};
    case ProgramCollectiveKind::all_reduce_sum:
      return {.op = "all_reduce sum", .given = all, .received = comm::all_reduce_received(all, group.size)};
    case ProgramCollectiveKind::all_reduce_max:
      return {.op = "all_reduce max", .given = all, .received = comm::all_reduce_received(all, group.size)};
  }
  return {};
}

void EventNumbers::begin_step(schedule::StepKind kind) {
  kind_ = kind;
  microbatch_ = -1;
  in_microbatch_ = false;
}

void EventNumbers::begin_microbatch() {
  ++microbatch_;
  in_microbatch_ = true;
  others_.clear();
  std::ranges::fill(counts_, Counts{});
}

schedule::Event EventNumbers::next(schedule::EventKind kind, schedule::Pass pass, schedule::ParameterId id) const {
  const auto index = static_cast<std::size_t>(id);
  return {.kind = kind,
          .step = kind_,
          .microbatch = in_microbatch_ ? microbatch_ : -1,
          .pass = pass,
          .parameter = id,
          .ordinal = index < counts_.size() ? counts_[index][place(kind, pass)] : 0};
}

void EventNumbers::happened(const schedule::Event& event) {
  if (event.parameter < 0) return;
  const auto index = static_cast<std::size_t>(event.parameter);
  if (index >= counts_.size()) counts_.resize(index + 1);
  ++counts_[index][place(event.kind, event.pass)];
}

schedule::Event EventNumbers::other(schedule::EventKind kind, const std::string& group, const std::string& op,
                                    std::int64_t bytes, schedule::Pass pass) {
  std::string key(name_of(kind));
  key.append("/").append(group).append("/").append(op).append("/").append(name_of(pass));
  return {.kind = kind,
          .step = kind_,
          .microbatch = in_microbatch_ ? microbatch_ : -1,
          .pass = pass,
          .ordinal = others_[key]++,
          .group = group,
          .op = op,
          .bytes = bytes};
}

}  // namespace tessera::runtime
