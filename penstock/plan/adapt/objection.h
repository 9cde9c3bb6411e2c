// Why a program may not take the place of another one in the midst of a run.
//
// A Trainer asks before it changes its program, and so does who proposes one.  What may change is
// when a rank does what.  Weights do not move.  No rank holds more than in the program that the run
// began with.  Not a bit of what is trained changes (docs/numerics.md): a stage keeps the order of
// its microbatches.  It runs their forwards in that order, because of buffers such as BatchNorm's,
// and adds their gradients in it.  A whole backward and its two halves add the same bits.
// Invariant sums do not depend on the order of backwards.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/verify/verify.h"

namespace penstock::adapt {

// How the gradients of microbatches are added; as train::GradientSums.
enum class Sums : std::uint8_t { InOrderOfProgram, Invariant };

// What a run asks of its programs.
struct Terms {
  Sums sums = Sums::InOrderOfProgram;
  std::vector<std::int32_t> room;  // Activations that a rank may hold at once, by rank of the pipe.
};

// Returns the terms of a run that begins with the program `first`.
Terms terms_of(const verify::VerifiedSchedule& first, Sums sums);

// The first objection, as a line; absent: there is none.
// REQUIRES: both train.
std::optional<std::string> objection_to_change(const verify::VerifiedSchedule& now,
                                               const verify::VerifiedSchedule& next,
                                               const Terms& terms);

// Why no program with microbatches in the order 0, 1, 2 and so on, on every stage, could take the
// place of this one.
std::optional<std::string> objection_to_order(const verify::VerifiedSchedule& now, Sums sums);

}  // namespace penstock::adapt
