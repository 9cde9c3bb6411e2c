// How much of this process, or of one of its mappings, is in memory, as the kernel counts it.
//
// For tests of mapped files and of allocators; knows nothing of what is in them.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace penstock::testing_support {

// Bytes of all mappings.
inline std::int64_t resident_bytes() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Bytes of the mapping that has this address; -1: none has it.
inline std::int64_t resident_bytes(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream file("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      is_it = begin <= wanted && wanted < end;
    } else if (is_it && line.starts_with("Rss:")) {
      return std::stoll(line.substr(4)) * 1024;
    }
  }
  return -1;
}

}  // namespace penstock::testing_support
