// Freed memory goes back to the system once a process has asked for it.
#include "penstock/offload/freed_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

namespace penstock::offload {
namespace {

constexpr std::size_t kBytes = 8 * kGivenBackBytes;

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory used(std::size_t bytes) {
  Memory memory(std::malloc(bytes));
  auto* const byte = static_cast<volatile char*>(memory.get());  // Else none of it need be there.
  for (std::size_t i = 0; i < bytes; i += 4096) byte[i] = 1;
  return memory;
}

// What stays resident of eight blocks that are freed, while a smaller one behind each is in use.
std::size_t bytes_that_stay() {
  used(kBytes).reset();  // From now on glibc takes such blocks from its heap, unless it was told.
  const std::size_t before = resident_bytes();
  std::vector<Memory> large, small;
  for (int i = 0; i < 8; ++i) {
    large.push_back(used(kBytes));
    small.push_back(used(kGivenBackBytes / 8));
  }
  large.clear();
  return resident_bytes() - before;
}

TEST(FreedMemory, GoesBackToTheSystemForAProcessThatAsks) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator is not glibc's";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // Each in a process that begins anew.
  ::unsetenv("MALLOC_MMAP_THRESHOLD_");
  const auto exit_with = [](bool holds) { std::_Exit(holds ? 0 : 1); };
  EXPECT_EXIT(exit_with(bytes_that_stay() > 4 * kBytes), testing::ExitedWithCode(0), "")
      << "without asking glibc keeps most: this test shows nothing";
  EXPECT_EXIT(
      {
        give_freed_memory_back();
        exit_with(bytes_that_stay() < kBytes);
      },
      testing::ExitedWithCode(0), "");
#endif
}

}  // namespace
}  // namespace penstock::offload
