// A simulation, and what it is of: the pictures need both.
//
// simulate.cpp and search.cpp hand it to Python.
#pragma once
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::bindings {

struct Simulated {
  verify::VerifiedSchedule verified;
  simulate::Simulation simulation;
};

}  // namespace penstock::bindings
