#include "penstock/launch/run_clock.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <vector>

#include "penstock/core/text.h"

namespace penstock::launch {

double host_seconds() {
  struct timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::optional<double> process_began(std::int64_t pid) {
  std::ifstream file(str("/proc/", pid, "/stat"));
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  const std::size_t name_end = stat.rfind(')');  // The name may contain anything.
  if (name_end == std::string::npos || name_end + 2 > stat.size()) return std::nullopt;
  constexpr std::size_t kStart = 19;  // Field 22; the state, field 3, is the first behind the name.
  const std::vector<std::string> fields = split(stat.substr(name_end + 2), ' ');
  const auto ticks = fields.size() > kStart ? parse_integer(fields[kStart]) : std::nullopt;
  if (!ticks) return std::nullopt;
  return static_cast<double>(*ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double seconds_of_run(const LauncherEnvironment& self, const VariableLookup& variable) {
  std::optional<double> began;
  if (const auto told = variable(kRunBeganVariable)) began = std::strtod(told->c_str(), nullptr);
  const bool is_restart = restart_count(variable) != "0";
  if (!began && self.kind == LauncherKind::Torchrun && is_restart)
    began = process_began(::getppid());
  if (!began) began = process_began(::getpid());
  return began ? std::max(0.0, host_seconds() - *began) : 0;
}

}  // namespace penstock::launch
