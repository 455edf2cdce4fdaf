// The checker on handwritten schedules with columnwise copies. Each test breaks one rule and expects its fault.
#include "tests/schedule/handwritten_step.h"

namespace tessera::schedule {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The same step with columnwise copies: a is gathered and has 1 byte of copies, b stays in place and has 2. In both
// microbatches the copy of a is made for one backward pass, and the copy of b is kept.
class CheckCopies : public Check {
 protected:
  CheckCopies() {
    made_.sizes[0].columnwise = 1;
    made_.sizes[1].columnwise = 2;
    made_.sizes[1].gathered = 0;
    schedule_.gather_bytes = {2, 0};
    schedule_.columnwise_bytes = {1, 2};
    std::erase_if(schedule_.residencies, [](const Residency& it) { return it.unit == 1; });
    schedule_.copies = {{.unit = 1, .make = 4, .last = 16, .offset = 2},
                        {.unit = 0, .make = 7, .last = 9, .offset = 4},
                        {.unit = 0, .make = 17, .last = 19, .offset = 4}};
  }
};

TEST_F(CheckCopies, AcceptsAHandwrittenSchedule) {
  EXPECT_THAT(faults(), IsEmpty());
}

// The bytes still hold the copy of the step before, and the optimizer has published the weight since.
TEST_F(CheckCopies, ACopyThatIsReadAfterItsWeightWasPublished) {
  std::swap(schedule_.copies[0], schedule_.copies[1]);
  schedule_.copies[1].make = 14;
  EXPECT_THAT(faults(), Contains(HasSubstr("event 4 (train mb 0 backward consume b (0)): reads columnwise copy 1 of "
                                           "['b'] (make 14, last 16, offset 2), which was made before the last publish "
                                           "event of the weight")));
  schedule_.copies[1] = {.unit = 1, .make = 14, .last = 21, .offset = 2};
  EXPECT_THAT(faults(), Contains(HasSubstr("(make 14, last 21, offset 2): expected 0 <= make < last < 20")));
}

TEST_F(CheckCopies, ACopyThatIsReadBeforeItIsMade) {
  schedule_.copies.erase(schedule_.copies.begin() + 1);
  EXPECT_THAT(faults(), Contains(HasSubstr("event 7 (train mb 0 backward consume a (0)): reads columnwise copy 1 of "
                                           "['a'] (make 17, last 19, offset 4), which was made before")));
  schedule_.copies.clear();
  EXPECT_THAT(faults(), Contains(HasSubstr("expected a columnwise copy of its weight, got a schedule without copies")));
}

TEST_F(CheckCopies, ACopyThatIsMadeTwice) {
  schedule_.copies.insert(schedule_.copies.begin() + 2, {.unit = 1, .make = 14, .last = 16, .offset = 2});
  EXPECT_THAT(faults(), Contains(HasSubstr("columnwise copy 2 of ['b'] (make 14, last 16, offset 2): made while "
                                           "columnwise copy 0 of ['b'] (make 4, last 16, offset 2) is in use")));
}

TEST_F(CheckCopies, ACopyThatEndsBeforeItsLastReader) {
  schedule_.copies[0].last = 6;
  EXPECT_THAT(faults(), Contains(HasSubstr("event 14 (train mb 1 backward consume b (0)): expected a position inside a "
                                           "columnwise copy of its unit, got columnwise copy 0")));
}

TEST_F(CheckCopies, ACopyWhoseBytesAreOverwritten) {
  schedule_.copies[1].offset = 3;
  EXPECT_THAT(faults(),
              Contains(HasSubstr("expected columnwise copy 0 of ['b'] (make 4, last 16, offset 2), got the "
                                 "end of columnwise copy 1 of ['a'] (make 7, last 9, offset 3) in its bytes")));
}

TEST_F(CheckCopies, AGatherIntoTheBytesOfACopy) {
  schedule_.residencies[2].offset = 1;
  EXPECT_THAT(faults(),
              Contains(HasSubstr("event 14 (train mb 1 backward consume b (0)): expected columnwise copy 0 of "
                                 "['b'] (make 4, last 16, offset 2), got residency 2 of ['a']")));
  schedule_.residencies[2].issue = 16;
  EXPECT_THAT(faults(), Contains(HasSubstr("its gather may overwrite the end of columnwise copy 0 of ['b']")));
}

TEST_F(CheckCopies, ACopyOverAGatherInFlight) {
  schedule_.residencies[1] = {.unit = 0, .issue = 1, .free = 1, .wait = 7, .last = 11, .offset = 2};
  EXPECT_THAT(faults(), Contains(HasSubstr("is written before event 4 (train mb 0 backward consume b (0)) while the "
                                           "gather of residency 1")));
}

TEST_F(CheckCopies, ACopyOutsideOfTheResidencyOfItsWeights) {
  schedule_.copies[1].last = 19;
  schedule_.copies.pop_back();
  EXPECT_THAT(faults(),
              Contains(HasSubstr("(make 7, last 19, offset 4): expected a residency of its unit from 7 to 19, "
                                 "got none")));
}

TEST_F(CheckCopies, CopiesAtOtherEventsOrOutsideOfTheArena) {
  schedule_.copies[1].make = 6;
  EXPECT_THAT(faults(), Contains(HasSubstr("expected a consume event of the unit in a backward pass, got event 6")));
  schedule_.copies[1] = {.unit = 0, .make = 7, .last = 11, .offset = 4};
  EXPECT_THAT(faults(), Contains(HasSubstr("expected a release event of the unit in a backward pass, got event 11")));
  schedule_.copies[1] = {.unit = 0, .make = 7, .last = 9, .offset = 5};
  EXPECT_THAT(faults(), Contains(HasSubstr("its 1 bytes do not fit into the gather arena of 5 bytes")));
  schedule_.copies[1] = {.unit = 2, .make = 7, .last = 9, .offset = 4};
  EXPECT_THAT(faults(), Contains("columnwise copy 1: expected a gather unit with copies, got unit 2"));
  schedule_.copies[1] = {.unit = 0, .make = 7, .last = 9, .offset = 4};
  std::swap(schedule_.copies[0], schedule_.copies[1]);
  EXPECT_THAT(faults(), Contains(HasSubstr("expected copies in order, but the previous one is at 7")));
}

TEST_F(CheckCopies, UnitsWithAndWithoutCopies) {
  schedule_.columnwise_bytes[0] = 0;
  EXPECT_THAT(faults(), Contains("gather unit 0 ['a']: expected at least 1 bytes for its columnwise copies, got 0"));
  schedule_.columnwise_bytes[0] = 1;
  made_.sizes[0].columnwise = 0;
  EXPECT_THAT(faults(), Contains(HasSubstr("expected members that are all with or all without columnwise copies")));
  made_.sizes[0].columnwise = 1;
  made_.sizes[0].unpacked = 1;
  schedule_.unpacked_bytes[0] = 1;
  EXPECT_THAT(faults(), Contains(HasSubstr("expected members that are either unpacked or copied, got 'a'")));
}

}  // namespace
}  // namespace tessera::schedule
