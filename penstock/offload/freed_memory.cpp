#include "penstock/offload/freed_memory.h"

#include <malloc.h>

#include <cstdlib>

namespace penstock::offload {

void give_freed_memory_back() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kGivenBackBytes));
#endif
}

}  // namespace penstock::offload
