// A handwritten schedule for tests of the checker. The step has two layers: per microbatch
// a+ a- b+ b- | b+ b! b- a+ a! a-, then the publish events of a and b at the positions -2 and -1.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/schedule/check/check.h"
#include "tests/schedule/oracle_cases.h"

namespace tessera::schedule {

inline oracle::Case case_named(const std::string& part) {
  for (oracle::Case& made : oracle::cases())
    if (made.name.find(part) != std::string::npos) return made;
  throw std::runtime_error("no case of that name: " + part);
}

class Check : public ::testing::Test {
 protected:
  Check() {
    schedule_ = {.kind = StepKind::train,
                 .microbatches = 2,
                 .events = 22,
                 .body = 20,
                 .trace_hash = hash_trace(made_.trace),
                 .gather_units = {{0}, {1}},
                 .reduce_units = {{0}, {1}},
                 .gather_domains = {0, 0},
                 .reduce_domains = {0, 0},
                 .gather_bytes = {2, 3},
                 .unpacked_bytes = {0, 0},
                 .columnwise_bytes = {0, 0},
                 .reduce_bytes = {2, 1},
                 .scratch_bytes = {2, 1},
                 .gather_arena = 5,
                 .reduce_arena = 3,
                 .scratch = 2};
    schedule_.residencies = {
        {.unit = 0, .issue = -2, .free = -2, .wait = 0, .last = 1, .offset = 0},
        {.unit = 1, .issue = -1, .free = -1, .wait = 2, .last = 6, .offset = 2},
        {.unit = 0, .issue = 1, .free = 1, .wait = 7, .last = 11, .offset = 0},
        {.unit = 1, .issue = 6, .free = 6, .wait = 12, .last = 16, .offset = 2},
        {.unit = 0, .issue = 11, .free = 11, .wait = 17, .last = 19, .offset = 0},
    };
    schedule_.reductions = {
        {.unit = 1, .microbatch = 0, .first = 5, .issue = 5, .finish = 14, .offset = 2},
        {.unit = 0, .microbatch = 0, .first = 8, .issue = 8, .finish = 17, .offset = 0},
        {.unit = 1, .microbatch = 1, .first = 15, .issue = 15, .finish = 19, .replicas = true, .offset = 2},
        {.unit = 0, .microbatch = 1, .first = 18, .issue = 18, .finish = 19, .replicas = true, .offset = 0},
    };
    schedule_.reductions[1].scratch_waits = {0};
    schedule_.reductions[2].scratch_waits = {1};
    schedule_.reductions[3].scratch_waits = {1, 2};
  }

  std::vector<std::string> faults() const { return check(made_.trace, made_.sizes, schedule_); }

  oracle::Case made_ = case_named("two layers");
  Schedule schedule_;
};

}  // namespace tessera::schedule
