// Variables of launchers whose ranks penstock does not recognise: each of their processes looks
// like a program that a user has started alone.
//
// cli/ tells of them where several such processes would each begin a whole run.  What is
// recognised: environment.h.
#pragma once
#include <string>

#include "penstock/launch/environment.h"

namespace penstock::launch {

// "PALS_RANKID=1 of PALS_SIZE=4"; empty where no such launcher has started more than one process.
std::string unknown_rank(const VariableLookup& variable);

// Names the launchers that are recognised, and what to set for another.  Begins with what
// unknown_rank() finds.
std::string note_on_launchers(const VariableLookup& variable);

}  // namespace penstock::launch
