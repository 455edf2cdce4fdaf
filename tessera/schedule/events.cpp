#include "tessera/schedule/events.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <array>

namespace tessera::schedule {

bool is_same(const Event& a, const Event& b) {
  return a.kind == b.kind && a.step == b.step && a.microbatch == b.microbatch && a.pass == b.pass &&
         a.parameter == b.parameter && a.ordinal == b.ordinal && a.group == b.group && a.op == b.op;
}

std::uint64_t hash_event(std::uint64_t hash, const Event& event) {
  const std::array<std::int64_t, 6> numbers = {static_cast<std::int64_t>(event.kind),
                                               static_cast<std::int64_t>(event.step),
                                               event.microbatch,
                                               static_cast<std::int64_t>(event.pass),
                                               event.parameter,
                                               event.ordinal};
  hash = XXH64(numbers.data(), sizeof numbers, hash);
  if (!event.group.empty()) hash = XXH64(event.group.data(), event.group.size(), hash);
  if (!event.op.empty()) hash = XXH64(event.op.data(), event.op.size(), hash);
  return hash;
}

std::uint64_t hash_trace(const Trace& trace) {
  std::uint64_t hash = 0;
  for (const Event& event : trace) hash = hash_event(hash, event);
  return hash;
}

std::int64_t peak_stashed(const Trace& trace) {
  std::int64_t now = 0, peak = 0;
  for (const Event& event : trace) {
    if (event.kind == EventKind::stash) now += event.bytes;
    if (event.kind == EventKind::fetch) now -= event.bytes;
    peak = std::max(peak, now);
  }
  return peak;
}

std::string_view name_of(StepKind kind) {
  return kind == StepKind::train ? "train" : "evaluate";
}

std::string_view name_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::recompute:
      return "recompute";
    case Pass::backward:
      return "backward";
  }
  return "?";
}

std::string piece_op(std::string_view transfer, int piece) {
  return fmt::format("{} piece {}", transfer, piece);
}

bool is_piece_op(std::string_view op) {
  return op.find(" piece ") != std::string_view::npos;
}

std::string sum_op(std::span<const int> ranks) {
  return fmt::format("ranks {}", fmt::join(ranks, " "));
}

bool reads_rows(const Event& event) {
  return event.kind == EventKind::comm && event.parameter >= 0 && !is_piece_op(event.op);
}

bool is_of_matrices(const Event& event) {
  return event.kind == EventKind::comm && (event.op == kGatherMatricesOp || event.op == kScatterMatricesOp);
}

std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::consume:
      return "consume";
    case EventKind::release:
      return "release";
    case EventKind::produce:
      return "produce";
    case EventKind::publish:
      return "publish";
    case EventKind::comm:
      return "comm";
    case EventKind::need:
      return "need";
    case EventKind::sum:
      return "sum";
    case EventKind::stash:
      return "stash";
    case EventKind::fetch:
      return "fetch";
  }
  return "?";
}

std::string to_string(const Event& event, const std::vector<std::string>& names) {
  const std::string place = event.microbatch < 0 ? "" : fmt::format(" mb {} {}", event.microbatch, name_of(event.pass));
  const auto index = static_cast<std::size_t>(event.parameter);
  const std::string name = index < names.size() ? names[index] : fmt::format("#{}", event.parameter);
  if (event.kind == EventKind::comm)
    return fmt::format("{}{} comm {} {} {}{} bytes", name_of(event.step), place, event.group, event.op,
                       event.parameter < 0 ? "" : name + " ", event.bytes);
  if (event.kind == EventKind::need || event.kind == EventKind::sum)
    return fmt::format("{}{} {} {} {}{} ({})", name_of(event.step), place, name_of(event.kind), event.group, event.op,
                       event.parameter < 0 ? "" : " " + name, event.ordinal);
  if (event.kind == EventKind::stash || event.kind == EventKind::fetch)
    return fmt::format("{}{} {} {} {} bytes", name_of(event.step), place, name_of(event.kind), event.op, event.bytes);
  return fmt::format("{}{} {} {} ({})", name_of(event.step), place, name_of(event.kind), name, event.ordinal);
}

}  // namespace tessera::schedule
