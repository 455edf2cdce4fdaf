#include "tessera/shard/events.h"

#include <fmt/format.h>

namespace tessera::shard {

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
  }
  return "?";
}

std::string to_string(const Event& event, const std::vector<std::string>& names) {
  const std::string place = event.microbatch < 0 ? "" : fmt::format(" mb {} {}", event.microbatch, name_of(event.pass));
  if (event.kind == EventKind::comm)
    return fmt::format("{}{} comm {} {} {} bytes", name_of(event.step), place, event.group, event.op, event.bytes);
  const auto index = static_cast<std::size_t>(event.parameter);
  const std::string name = index < names.size() ? names[index] : fmt::format("#{}", event.parameter);
  return fmt::format("{}{} {} {} ({})", name_of(event.step), place, name_of(event.kind), name, event.ordinal);
}

}  // namespace tessera::shard
