#include "penstock/launch/close_descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace penstock::launch {
namespace {

bool close_range(unsigned first, unsigned last) {
  return ::syscall(SYS_close_range, first, last, 0) == 0;
}

bool close_ranges(int kept) {
  const auto number = static_cast<unsigned>(kept);
  return close_range(number + 1, ~0U) && (number == 0 || close_range(0, number - 1));
}

// -1 for a name that is no number.
int number_of(const char* name) {
  int number = 0;
  for (const char* digit = name; *digit != 0; ++digit) {
    if (*digit < '0' || *digit > '9') return -1;
    number = number * 10 + (*digit - '0');
  }
  return number;
}

// Closes the descriptors that the kernel lists.  The list is read by numbers, so closing one hides
// no other.
bool close_listed(int kept) {
  const int list = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) return false;
  alignas(dirent64) char entries[4096];
  long size = 0;
  while ((size = ::syscall(SYS_getdents64, list, entries, sizeof entries)) > 0) {
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      const int number = number_of(entry->d_name);
      if (number >= 0 && number != kept && number != list) ::close(number);
      at += entry->d_reclen;
    }
  }
  ::close(list);
  return size == 0;
}

// A limit may be a thousand million, and numbers are given from below.
void close_each(int kept) {
  constexpr rlim_t kTried = 65536;
  rlimit limit{};
  const rlim_t end = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : kTried;
  for (int number = 0; number < static_cast<int>(std::min(end, kTried)); ++number) {
    if (number != kept) ::close(number);
  }
}

}  // namespace

void close_all_but(int kept) {
  if (!close_ranges(kept) && !close_listed(kept)) close_each(kept);
}

}  // namespace penstock::launch
