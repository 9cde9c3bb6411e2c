#include "penstock/core/utc_time.h"

#include <cstdio>
#include <ctime>

namespace penstock {

std::string utc_text(std::chrono::system_clock::time_point moment) {
  using std::chrono::milliseconds;
  const auto whole = std::chrono::floor<std::chrono::seconds>(moment);
  const auto rest = std::chrono::duration_cast<milliseconds>(moment - whole).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(whole);
  std::tm parts{};
  char date[64];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &parts));
  char text[80];
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(rest));
  return text;
}

}  // namespace penstock
