#include "penstock/core/process_stat.h"

#include <fstream>
#include <iterator>
#include <vector>

#include "penstock/core/text.h"

namespace penstock {

std::optional<ProcessStat> process_stat(std::int64_t pid) {
  std::ifstream file(str("/proc/", pid, "/stat"));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::size_t name_end = text.rfind(')');  // The name may contain anything.
  if (name_end == std::string::npos) return std::nullopt;
  // The fields from the third on.
  const std::vector<std::string> fields =
      split(trim(std::string_view(text).substr(name_end + 1)), ' ');
  constexpr std::size_t kStart = 22 - 3;
  if (fields.size() <= kStart || fields[0].empty()) return std::nullopt;
  return ProcessStat{.state = fields[0][0], .start = fields[kStart]};
}

}  // namespace penstock
