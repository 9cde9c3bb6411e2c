// What would work, where a schedule refuses sizes.
//
// make_schedule() adds it to the error.  Knows no schedule: it asks for objections to sizes nearby.
#pragma once
#include <string>
#include <vector>

#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

// "nearest sizes that work: microbatches=8 or microbatches=10", as the notes of an error; none when
// no size nearby does.
std::vector<std::string> repairs_of(const Generator& generator, const Sizes& sizes);

}  // namespace penstock::schedule
