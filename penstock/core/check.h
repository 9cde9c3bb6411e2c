// PENSTOCK_CHECK: a condition that only a bug of ours can break.
//
// Prints the file, the condition and the values, then aborts; active in every build type.
// Never used on input: what a user can cause is an Error (error.h).
#pragma once
#include "penstock/core/text.h"

namespace penstock {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values);
}  // namespace penstock

// PENSTOCK_CHECK(condition, values...): the values are printed as str(values...) prints them.
#define PENSTOCK_CHECK(condition, ...)                                                        \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::penstock::check_failed(__FILE__, __LINE__, #condition, ::penstock::str(__VA_ARGS__)); \
  } while (false)
