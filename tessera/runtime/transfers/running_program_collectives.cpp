// The program's collectives over a domain, and the pieces of transfers.
#include "tessera/base/error.h"
#include "tessera/comm/operation.h"
#include "tessera/comm/reduce.h"
#include "tessera/runtime/running_program.h"

namespace tessera::runtime {

using schedule::ParameterId;

Issued RunningProgram::issue(const ProgramCollective& collective) {
  const CollectiveTraffic traffic = traffic_of(collective, compute_group(collective.domain));
  int event = -1;
  if (collective.is_recorded) {
    record(step_.recorder.collective_event(collective, traffic));
    event = step_.recorder.last();
    if (!is_piece(collective.kind)) step_.timeline.began(event);
    step_.statistics.activations_by_format[static_cast<std::size_t>(traffic.format)] += traffic.received;
  }
  comm::Communicator& group = step_.parallel.program(collective.domain);
  const bool has_peers = !is_piece(collective.kind) || collective.piece < group.size();
  if (!has_peers) return {.done = {}, .event = event, .offset = collective.offset, .bytes = traffic.stored};
  if (step_.parallel.is_asynchronous()) group.lane().wait(step_.parallel.compute->record());
  if (is_piece(collective.kind)) {
    if (traffic.received > 0) {
      ++step_.statistics.tp_pieces;
      if (plans_.current() && !step_.arenas.transfers->contains(collective.out)) ++step_.statistics.tp_fallbacks;
    }
    if (const ReplayOptions& replay = step_.options.replay; replay.delay_seed != 0)
      group.lane().delay(std::uniform_real_distribution<double>(0, replay.longest_delay)(random_));
  }
  const base::LaneMark mark = is_piece(collective.kind) ? mark_of_piece(event) : base::LaneMark();
  mark.begin(group.lane());
  const base::Fence done = mark.end(group.lane(), start(group, collective));
  return {.done = done, .event = event, .offset = collective.offset, .bytes = traffic.stored};
}

// Several pieces may be in flight, so the lane measures the time of each piece.
base::LaneMark RunningProgram::mark_of_piece(int event) {
  if (event < 0) return {};
  const schedule::Event& begun = step_.recorder.trace()[static_cast<std::size_t>(event)];
  const std::vector<ParameterId> weights(begun.parameter >= 0 ? 1 : 0, begun.parameter);
  return runtime::record(step_.timeline, step_.recorder.trace(), static_cast<std::size_t>(event), weights)
      .mark(mesh::Transfer::program, begun.bytes);
}

static base::Fence start_piece(comm::Communicator& group, const ProgramCollective& it) {
  const auto [to, from] = piece_peers(it.piece, group.rank(), group.size());
  const bool gathers = it.kind == ProgramCollectiveKind::gather_piece;
  const auto bytes_of = [&](int rank) { return comm::bytes_of(it.counts[static_cast<std::size_t>(rank)], it.type); };
  const void* sent = gathers ? it.in : comm::advance(it.in, comm::offset_of(it.counts, to), it.type);
  void* received = gathers ? comm::advance(it.out, comm::offset_of(it.counts, from), it.type) : it.out;
  const std::size_t own = bytes_of(group.rank());
  std::vector<comm::Send> sends{{.peer = to, .data = sent, .bytes = gathers ? own : bytes_of(to)}};
  std::vector<comm::Receive> receives{{.peer = from, .data = received, .bytes = gathers ? bytes_of(from) : own}};
  if (gathers && it.piece == 1) {
    void* place = comm::advance(it.out, comm::offset_of(it.counts, group.rank()), it.type);
    sends.push_back({.peer = group.rank(), .data = it.in, .bytes = own});
    receives.push_back({.peer = group.rank(), .data = place, .bytes = own});
  }
  return group.exchange(std::move(sends), std::move(receives));
}

base::Fence RunningProgram::start(comm::Communicator& group, const ProgramCollective& collective) {
  const std::vector<std::int64_t> counts(collective.counts.begin(), collective.counts.end());
  switch (collective.kind) {
    case ProgramCollectiveKind::all_gather:
      return group.all_gather(collective.in, collective.out, counts, collective.type);
    case ProgramCollectiveKind::reduce_scatter:
      return group.reduce_scatter(collective.in, collective.out, counts, collective.type);
    case ProgramCollectiveKind::all_reduce_sum:
      return group.all_reduce(collective.out, counts.front(), collective.type, comm::ReduceOp::sum);
    case ProgramCollectiveKind::all_reduce_max:
      return group.all_reduce(collective.out, counts.front(), collective.type, comm::ReduceOp::max);
    case ProgramCollectiveKind::gather_piece:
    case ProgramCollectiveKind::scatter_piece:
      return start_piece(group, collective);
  }
  throw Error("a collective of an unknown kind");
}

TransferMemory RunningProgram::take_transfer(std::int64_t bytes) {
  TransferMemory memory = step_.arenas.transfers->take(bytes);
  if (memory.data != nullptr && step_.options.replay.poison)
    step_.parallel.kernels().fill(memory.data, quant::DType::u8, 0xFF, bytes);
  return memory;
}

void RunningProgram::record_sum(const ScatterSum& sum) {
  record(step_.recorder.sum_event(sum));
}

void RunningProgram::add_in_order(void* out, std::span<const void* const> parts, quant::DType type,
                                  std::int64_t count) {
  comm::reduce(step_.parallel.kernels(), out, parts, type, comm::ReduceOp::sum, count);
}

// Returns whether the operation exchanges rows of a table or numbers of the optimizer, not activations.
bool RunningProgram::is_of_weights(const Issued& issued) const {
  if (issued.event < 0) return false;
  const schedule::Event& event = step_.recorder.trace()[static_cast<std::size_t>(issued.event)];
  return schedule::reads_rows(event) || event.group == schedule::kCastGroup || schedule::is_of_matrices(event);
}

void RunningProgram::wait(const Issued& issued) {
  if (issued.event >= 0) {
    const schedule::Event event = step_.recorder.trace()[static_cast<std::size_t>(issued.event)];
    if (schedule::is_piece_op(event.op)) record(step_.recorder.need_event(event, issued));
  }
  const double before = step_.statistics.exposed_seconds;
  const auto first = static_cast<std::ptrdiff_t>(step_.waits.on_device().size());
  const bool has_peers = issued.done.state() != nullptr;  // false: a piece without peers, which needs no wait
  if (has_peers && is_of_weights(issued))
    step_.waits.until(issued.done, mesh::Transfer::program);
  else if (has_peers)
    step_.waits.until_program(issued.done);
  if (issued.event < 0) return;
  const FencePairs& waits = step_.waits.on_device();
  // Also called without peers, because all ranks of a class need the same positions of waits.
  if (!plans_.current())
    step_.measure.waited(issued.event, step_.recorder.last(), step_.statistics.exposed_seconds - before,
                         {waits.begin() + first, waits.end()});
  step_.timeline.finished(issued.event, step_.recorder.trace()[static_cast<std::size_t>(issued.event)]);
}

}  // namespace tessera::runtime
