#include "tessera/schedule/events_json.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"

namespace tessera::schedule {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "tessera trace";
constexpr int kVersion = 1;
constexpr std::array<StepKind, 2> kSteps{StepKind::train, StepKind::evaluate};
constexpr std::array<Pass, 3> kPasses{Pass::forward, Pass::recompute, Pass::backward};
constexpr std::array<EventKind, 9> kKinds{EventKind::consume, EventKind::release, EventKind::produce,
                                          EventKind::publish, EventKind::comm,    EventKind::need,
                                          EventKind::sum,     EventKind::stash,   EventKind::fetch};

bool has_group(EventKind kind) {
  return kind == EventKind::comm || kind == EventKind::need || kind == EventKind::sum;
}

bool is_kept(EventKind kind) {
  return kind == EventKind::stash || kind == EventKind::fetch;
}

std::string event_text(const Event& event) {
  const std::string head =
      fmt::format(R"(["{}", {}, "{}", )", name_of(event.kind), event.microbatch, name_of(event.pass));
  if (has_group(event.kind)) {
    std::string tail = event.parameter >= 0 || event.offset >= 0 ? fmt::format(", {}", event.parameter) : "";
    if (event.offset >= 0) tail += fmt::format(", {}", event.offset);
    return fmt::format("{}{}, {}, {}, {}{}]", head, event.ordinal, json(event.group).dump(), json(event.op).dump(),
                       event.bytes, tail);
  }
  if (is_kept(event.kind)) return fmt::format("{}{}, {}, {}]", head, event.ordinal, json(event.op).dump(), event.bytes);
  return fmt::format("{}{}, {}]", head, event.parameter, event.ordinal);
}

[[noreturn]] void refuse(const std::string& where, const json& got, const std::string& expected) {
  throw InputError("{}: got {}, expected {}", where, base::shown(got), expected);
}

const json& field(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw InputError("{}: key '{}' is missing", where, key);
  return *found;
}

std::string text_of(const json& value, const std::string& where) {
  if (!value.is_string()) refuse(where, value, "a text");
  return value.get<std::string>();
}

std::int64_t integer_of(const json& value, std::int64_t low, std::int64_t high, const std::string& where) {
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  if (!value.is_number_integer()) refuse(where, value, expected);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    refuse(where, value, expected);
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) refuse(where, value, expected);
  return number;
}

template <typename E, std::size_t N>
E word_of(const json& value, const std::array<E, N>& known, const std::string& where) {
  std::string names;
  for (const E word : known) {
    if (value.is_string() && value.get_ref<const std::string&>() == name_of(word)) return word;
    names += (names.empty() ? "" : ", ") + std::string(name_of(word));
  }
  refuse(where, value, "one of " + names);
}

Event event_from(const json& value, StepKind step, std::size_t parameters, const std::string& where) {
  // Sums over the events of a step fit into 64 bits, and numbers of microbatches into an int.
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40, kMaxMicrobatches = 1'000'000;
  constexpr int most = std::numeric_limits<int>::max();
  if (!value.is_array() || value.empty()) refuse(where, value, "an array that begins with the kind of event");
  Event event{.kind = word_of(value[0], kKinds, where), .step = step};
  const std::size_t fields = has_group(event.kind) ? 7 : is_kept(event.kind) ? 6 : 5;
  // The parameter and the offset are absent if the event has neither.
  const std::size_t more = has_group(event.kind) && value.size() > fields ? value.size() - fields : 0;
  if (value.size() != fields && (more < 1 || more > 2)) refuse(where, value, fmt::format("{} fields", fields));
  event.microbatch = static_cast<int>(integer_of(value[1], -1, kMaxMicrobatches - 1, where + ": microbatch"));
  event.pass = word_of(value[2], kPasses, where + ": pass");
  const auto parameter_at = [&](std::size_t at, std::int64_t first) {
    const auto last = static_cast<std::int64_t>(parameters) - 1;
    return static_cast<ParameterId>(integer_of(value[at], first, last, where + ": parameter"));
  };
  if (more > 0) event.parameter = parameter_at(fields, more == 2 ? kNoParameter : 0);
  if (more == 2) event.offset = integer_of(value[fields + 1], 0, kMaxBytes, where + ": offset");
  if (fields == 5) {
    event.parameter = parameter_at(3, 0);
    event.ordinal = static_cast<int>(integer_of(value[4], 0, most, where + ": ordinal"));
    return event;
  }
  event.ordinal = static_cast<int>(integer_of(value[3], 0, most, where + ": ordinal"));
  if (fields == 7) event.group = text_of(value[4], where + ": group");
  event.op = text_of(value[fields - 2], where + ": op");
  event.bytes = integer_of(value[fields - 1], 0, kMaxBytes, where + ": bytes");
  return event;
}

}  // namespace

std::string trace_to_json(const NamedTrace& named) {
  const StepKind step = named.trace.empty() ? StepKind::train : named.trace.front().step;
  std::string text = fmt::format("{{\"format\": \"{}\", \"version\": {}, \"step\": \"{}\",\n\"parameters\": [", kFormat,
                                 kVersion, name_of(step));
  for (std::size_t i = 0; i < named.names.size(); ++i)
    text += fmt::format("{}\n {}", i == 0 ? "" : ",", json(named.names[i]).dump());
  text += "],\n\"events\": [";
  for (std::size_t i = 0; i < named.trace.size(); ++i) {
    const Event& event = named.trace[i];
    TESSERA_CHECK(event.step == step, "event {} has another step kind than the first event", i);
    const bool may_have_none = has_group(event.kind) && event.parameter == kNoParameter;
    TESSERA_CHECK(may_have_none || is_kept(event.kind) ||
                      (event.parameter >= 0 && static_cast<std::size_t>(event.parameter) < named.names.size()),
                  "event {} uses parameter {}, but there are {} names", i, event.parameter, named.names.size());
    text += fmt::format("{}\n {}", i == 0 ? "" : ",", event_text(event));
  }
  return text + "]}\n";
}

NamedTrace trace_from_json(const json& value, const std::string& where) {
  if (!value.is_object()) refuse(where, value, "a JSON object that holds a trace");
  if (const json& format = field(value, "format", where); format != kFormat)
    refuse(where + ": format", format, fmt::format("'{}'", kFormat));
  if (const json& version = field(value, "version", where); version != kVersion)
    refuse(where + ": version", version, std::to_string(kVersion));
  for (const auto& [key, ignored] : value.items())
    if (key != "format" && key != "version" && key != "step" && key != "parameters" && key != "events")
      throw InputError("{}: unknown key '{}', expected format, version, step, parameters and events", where,
                       base::excerpt(key));
  const StepKind step = word_of(field(value, "step", where), kSteps, where + ": step");
  const json& names = field(value, "parameters", where);
  const json& events = field(value, "events", where);
  if (!names.is_array()) refuse(where + ": parameters", names, "a list of names");
  if (!events.is_array()) refuse(where + ": events", events, "a list of events");
  NamedTrace named;
  for (const json& name : names) named.names.push_back(text_of(name, where + ": parameters"));
  for (std::size_t i = 0; i < events.size(); ++i)
    named.trace.push_back(event_from(events[i], step, named.names.size(), fmt::format("{}: event {}", where, i)));
  return named;
}

void save_trace(const std::filesystem::path& path, const NamedTrace& named) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << trace_to_json(named);
  file.flush();
  if (!file) throw Error("{}: the trace cannot be written: {}", path.string(), std::strerror(errno ? errno : EIO));
}

NamedTrace load_trace(const std::filesystem::path& path) {
  return trace_from_json(base::read_json_file(path), path.string());
}

}  // namespace tessera::schedule
