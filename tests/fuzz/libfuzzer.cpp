// libFuzzer's entry: one target, named by the build, under a limit of CPU time per input.
//
// The limit is ours because libFuzzer's own is in whole seconds of wall time.  An input over it
// gets a second and a third try, so that a page fault or a neighbour on the machine is no finding.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "penstock/core/check.h"
#include "tests/fuzz/targets.h"

namespace {

using penstock::fuzz::Target;

constexpr double kSecondsMax = 0.1;
constexpr int kTries = 3;

double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

const Target& target() {
  const auto targets = penstock::fuzz::targets();
  const auto found = std::ranges::find(targets, PENSTOCK_FUZZ_TARGET, &Target::name);
  PENSTOCK_CHECK(found != targets.end(), "no target ", PENSTOCK_FUZZ_TARGET);
  return *found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Target& tested = target();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  double least = kSecondsMax + 1.0;
  for (int tries = 0; tries < kTries && least > kSecondsMax; ++tries) {
    const double start = cpu_seconds();
    tested.check(input);
    least = std::min(least, cpu_seconds() - start);
  }
  PENSTOCK_CHECK(least <= kSecondsMax, size, " bytes took ", least, " s of CPU time");
  return 0;
}
