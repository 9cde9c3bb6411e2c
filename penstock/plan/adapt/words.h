// What a user hears of changed costs and programs, as lines.
//
// run/ tells them on rank 0, and writes them into its events.  Each is one line without a name in
// front.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/plan/adapt/adaptation.h"
#include "penstock/plan/adapt/proposal.h"

namespace penstock::adapt {

// "costs have changed: stage 1 (rank 1 of the pipe) takes 12.4 ms a microbatch, 6.1 ms before; a
// step takes 61 ms, 40.2 ms before (steps 42 to 61, before: 2 to 21)".
std::string text_of(const Told& told, const WindowCosts& now,
                    const verify::VerifiedSchedule& program);

// "another order of the same work would take 9.3% less by simulation", with what to do.
std::string text_of_chance(const Proposal& proposal, double least_gain);

// "from step 62 on another order, by simulation 33.1 ms a step for 38.4 ms: 13.8% less".
std::string text_of_change(const Proposal& proposal, std::int64_t first_step);

// "the new order takes 35 ms a step, 40.1 ms before: 12.7% less, 13.8% by simulation".
std::string text_of(const Judgement& judged);

}  // namespace penstock::adapt
