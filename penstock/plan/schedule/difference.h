// Finds how two schedules differ, rank by rank: for people who compare an order with another one.
//
// `penstock schedule diff` prints it.  Knows no meaning: only which actions stand where.
#pragma once
#include <string>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// "" when the programs are equal.  Else a line on the sizes, if these differ, and for each rank
// that differs its first difference and the edits that make the one program the other:
//   rank 1: 3 differences, the first at action 2: 1F2 | 1B0
//     1F0 1F1 [-1F2-] 1B0 {+1F2+} ... 12 equal ... 1B2
// Cost: linear in the actions for equal programs; else times the number of differences, up to a
// limit behind which whole stretches are shown as replaced.
std::string difference(const Schedule& a, const Schedule& b);

}  // namespace penstock::schedule
