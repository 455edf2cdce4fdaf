#include "tessera/schedule/events_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "tessera/base/error.h"

namespace tessera::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using nlohmann::json;

NamedTrace random_trace(std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const std::vector<std::string> words{"tp", "all_reduce sum", "a \"quoted\" name", "line\nbreak", "Größe", ""};
  NamedTrace named;
  for (std::int64_t i = 0; i <= below(5); ++i) named.names.push_back(words[static_cast<std::size_t>(below(6))]);
  const StepKind step = below(2) == 0 ? StepKind::train : StepKind::evaluate;
  for (std::int64_t i = 0; i < below(40); ++i) {
    Event event{.kind = static_cast<EventKind>(below(9)),
                .step = step,
                .microbatch = static_cast<int>(below(4)) - 1,
                .pass = static_cast<Pass>(below(3)),
                .ordinal = static_cast<int>(below(1'000'000))};
    if (event.kind < EventKind::comm) {
      event.parameter = static_cast<ParameterId>(below(static_cast<std::int64_t>(named.names.size())));
    } else {
      if (event.kind == EventKind::comm || event.kind == EventKind::need || event.kind == EventKind::sum) {
        event.group = words[static_cast<std::size_t>(below(6))];
        event.parameter = static_cast<ParameterId>(below(static_cast<std::int64_t>(named.names.size()) + 1)) - 1;
        event.offset = below(2) == 0 ? -1 : below(std::int64_t{1} << 40);
      }
      event.op = words[static_cast<std::size_t>(below(6))];
      event.bytes = below(std::int64_t{1} << 40);
    }
    named.trace.push_back(event);
  }
  return named;
}

TEST(EventsJson, EveryTraceRoundTrips) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const NamedTrace named = random_trace(random);
    const std::string text = trace_to_json(named);
    EXPECT_EQ(trace_from_json(json::parse(text), "t"), named) << text;
  }
}

TEST(EventsJson, AFileRoundTrips) {
  std::mt19937_64 random(6);
  const NamedTrace named = random_trace(random);
  const auto path = std::filesystem::temp_directory_path() / ("tessera-trace-" + std::to_string(::getpid()) + ".json");
  save_trace(path, named);
  EXPECT_EQ(load_trace(path), named);
  std::filesystem::remove(path);
  EXPECT_THAT([&] { load_trace(path); }, ThrowsMessage<InputError>(HasSubstr("cannot be read: No")));
  EXPECT_THAT([&] { save_trace("/nowhere/at/all.json", named); },
              ThrowsMessage<Error>(HasSubstr("/nowhere/at/all.json: the trace cannot be written")));
}

TEST(EventsJson, HasOneEventPerLine) {
  const NamedTrace named{
      .names = {"w"},
      .trace = {{.kind = EventKind::consume, .microbatch = 2, .parameter = 0, .ordinal = 1},
                {.kind = EventKind::comm, .microbatch = 0, .group = "tp", .op = "all_gather", .bytes = 12},
                {.kind = EventKind::comm, .parameter = 0, .group = "gtp", .op = "gather_rows", .bytes = 9},
                {.kind = EventKind::need, .microbatch = 0, .group = "tp", .op = "x", .bytes = 8, .offset = 4},
                {.kind = EventKind::stash, .microbatch = 0, .pass = Pass::recompute, .op = "keep", .bytes = 7}}};
  EXPECT_EQ(trace_to_json(named), R"({"format": "tessera trace", "version": 1, "step": "train",
"parameters": [
 "w"],
"events": [
 ["consume", 2, "forward", 0, 1],
 ["comm", 0, "forward", 0, "tp", "all_gather", 12],
 ["comm", -1, "forward", 0, "gtp", "gather_rows", 9, 0],
 ["need", 0, "forward", 0, "tp", "x", 8, -1, 4],
 ["stash", 0, "recompute", 0, "keep", 7]]}
)");
}

TEST(EventsJson, RefusesToWriteInvalidTraces) {
  NamedTrace named{.names = {"w"}, .trace = {{.parameter = 1}}};
  EXPECT_THAT([&] { trace_to_json(named); },
              ThrowsMessage<Error>(HasSubstr("event 0 uses parameter 1, but there are 1 names")));
  named.trace = {{.parameter = 0}, {.step = StepKind::evaluate, .parameter = 0}};
  EXPECT_THAT([&] { trace_to_json(named); },
              ThrowsMessage<Error>(HasSubstr("event 1 has another step kind than the first event")));
}

// Returns the error message for a valid trace in which the value at `pointer` is replaced.
std::string refusal(const std::string& pointer, const json& value) {
  json good = json::parse(R"({"format": "tessera trace", "version": 1, "step": "train", "parameters": ["v", "w"],
    "events": [["consume", 0, "forward", 1, 0], ["comm", 0, "forward", 0, "tp", "sum", 4],
               ["fetch", 0, "backward", 0, "keep", 4]]})");
  EXPECT_NO_THROW(trace_from_json(good, "FILE"));
  good[json::json_pointer(pointer)] = value;
  try {
    trace_from_json(good, "FILE");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(EventsJson, ErrorsNameThePlaceInTheFile) {
  EXPECT_EQ(refusal("/version", 2), "FILE: version: got 2, expected 1");
  EXPECT_EQ(refusal("/format", "x"), "FILE: format: got \"x\", expected 'tessera trace'");
  EXPECT_EQ(refusal("/step", "train "), "FILE: step: got \"train \", expected one of train, evaluate");
  EXPECT_EQ(refusal("/more", 1), "FILE: unknown key 'more', expected format, version, step, parameters and events");
  EXPECT_EQ(refusal("/events/0/3", 2), "FILE: event 0: parameter: got 2, expected an integer from 0 to 1");
  EXPECT_EQ(refusal("/events/0/3", 1.5), "FILE: event 0: parameter: got 1.5, expected an integer from 0 to 1");
  EXPECT_EQ(refusal("/events/1/0", "consumed"),
            "FILE: event 1: got \"consumed\", expected one of consume, release, produce, publish, comm, need, sum, "
            "stash, fetch");
  EXPECT_EQ(refusal("/events/1/0", "stash"),
            R"(FILE: event 1: got ["stash",0,"forward",0,"tp","sum",4], expected 6 fields)");
  EXPECT_EQ(refusal("/events/2/5", -1), "FILE: event 2: bytes: got -1, expected an integer from 0 to 1099511627776");
  EXPECT_EQ(refusal("/events/2/1", -2), "FILE: event 2: microbatch: got -2, expected an integer from -1 to 999999");
  EXPECT_EQ(refusal("/events/2/1", 1'000'000),
            "FILE: event 2: microbatch: got 1000000, expected an integer from -1 to 999999");
  EXPECT_EQ(refusal("/parameters/0", 3), "FILE: parameters: got 3, expected a text");
  EXPECT_THAT([&] { trace_from_json(json::parse(R"({"format": "tessera trace", "version": 1})"), "FILE"); },
              ThrowsMessage<InputError>(HasSubstr("FILE: key")));
  EXPECT_THAT([&] { trace_from_json(json::array(), "FILE"); }, ThrowsMessage<InputError>(HasSubstr("FILE: ")));
}

// A damaged text is either read as a trace or refused with an InputError.
TEST(EventsJson, DamagedTextIsReadOrRefused) {
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = trace_to_json(random_trace(random));
    for (int flips = 0; flips < 3; ++flips) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) text.erase(at, 1 + random() % 9);
      if (random() % 2 == 0) text.insert(at, 1, "0-9[]{}\",.e\x01\xff"[random() % 13]);
    }
    const json parsed = json::parse(text, nullptr, false);
    if (parsed.is_discarded()) continue;
    try {
      const NamedTrace read = trace_from_json(parsed, "FILE");
      EXPECT_EQ(trace_from_json(json::parse(trace_to_json(read)), "FILE"), read);
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace tessera::schedule
