// The error of a wait that must fail, and what its text must say.
//
// For tests of the communicator.  Knows CommError only.
#pragma once
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "penstock/core/error.h"

namespace penstock::comm {

template <class Wait>
CommError failure_of(const Wait& wait) {
  try {
    wait();
  } catch (const CommError& error) {
    return error;
  }
  ADD_FAILURE() << "did not fail";
  return CommError("");
}

inline void expect_contains(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }
}

}  // namespace penstock::comm
