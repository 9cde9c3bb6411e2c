// A run that adapts ended when it went back to a program that holds more activations than the one
// that was not faster: a program could only take the place of one with as many.
#include <gtest/gtest.h>

#include "penstock/plan/adapt/objection.h"
#include "penstock/plan/lower/programs.h"

namespace penstock::adapt {
namespace {

verify::VerifiedSchedule program(const char* name) {
  return lower::training_program({.schedule = name, .ranks = 2, .microbatches = 4});
}

TEST(RunCouldNotGoBackToItsProgram, WithTheRoomThatItBeganWith) {
  const auto first = program("gpipe"), next = program("1f1b");
  const Terms terms = terms_of(first, Sums::InOrderOfProgram);
  EXPECT_EQ(objection_to_change(first, next, terms), std::nullopt);
  EXPECT_EQ(objection_to_change(next, first, terms), std::nullopt);
  EXPECT_NE(objection_to_change(next, first, terms_of(next, Sums::InOrderOfProgram)), std::nullopt);
}

}  // namespace
}  // namespace penstock::adapt
