// Runs a schedule's programs against each other without time: does every rank reach its end?
//
// verify() calls it last, on a schedule whose actions are complete and paired.
#pragma once
#include <optional>
#include <vector>

#include "penstock/verify/verify.h"

namespace penstock::verify {

// The deadlock, if there is one: the first rank of a cycle of waits, with the cycle in the notes.
// REQUIRES: `rank_of_stage` holds the rank of each stage; every RECV has its SEND.
std::optional<Diagnostic> replay(const schedule::Schedule& schedule,
                                 const std::vector<Rank>& rank_of_stage);

}  // namespace penstock::verify
