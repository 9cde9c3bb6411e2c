#include "penstock/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace penstock {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "penstock bug: %s:%d: check failed: %s%s%s\n", file, line, condition,
               values.empty() ? "" : ": ", values.c_str());
  std::abort();
}

}  // namespace penstock
