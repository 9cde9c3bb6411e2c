#include "penstock/schedule/schedule_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

constexpr std::size_t kBytesMax = std::size_t{1} << 30;

}  // namespace

std::string read_schedule_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  while (file && text.size() <= kBytesMax) {
    file.read(block.data(), std::ssize(block));
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad()) {
    throw ConfigError(str("schedule file \"", path, "\": cannot be read: ", std::strerror(errno)));
  }
  if (text.size() > kBytesMax) throw ParseError(str(path, ": larger than 1 GiB"));
  return text;
}

}  // namespace penstock::schedule
