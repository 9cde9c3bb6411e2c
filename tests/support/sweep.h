// A sweep in both tiers: the quick one runs a part of it, the long one all.
//
// tests/suites.cmake sets PENSTOCK_LONG_TESTS for the tests that it labels "long"; those of WHOLE
// run a suite again.  tests/python/ranks.py reads the same variable.
#pragma once
#include <cstdlib>

namespace penstock::testing_support {

inline bool runs_whole_sweeps() { return std::getenv("PENSTOCK_LONG_TESTS") != nullptr; }

}  // namespace penstock::testing_support
