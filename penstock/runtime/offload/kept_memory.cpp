#include "penstock/runtime/offload/kept_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <string_view>

namespace penstock::offload {

#ifdef __GLIBC__
namespace {

bool user_says_limits() {
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr &&
         std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos;
}

}  // namespace
#endif

void keep_freed_memory() {
#ifdef __GLIBC__
  if (user_says_limits()) return;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kKeptBytesMax));
  mallopt(M_TRIM_THRESHOLD, -1);  // Never.
#endif
}

void give_back_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void give_freed_memory_back() {
#ifdef __GLIBC__
  if (user_says_limits()) return;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kGivenBackBytes));
#endif
}

}  // namespace penstock::offload
