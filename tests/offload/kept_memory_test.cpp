#include "penstock/runtime/offload/kept_memory.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/glibc_allocator.h"
#include "tests/support/resident_bytes.h"

namespace penstock::offload {
namespace {

using testing_support::kHasAllocatorOfGlibc;
using testing_support::resident_bytes;

constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kStepBytes = std::int64_t{64} << 20;

std::int64_t faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// What a step takes and frees: activations of a megabyte, and logits of sixteen.
void step() {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 48; ++i) tensors.push_back(at::ones({std::int64_t{1} << 18}));
  tensors.push_back(at::ones({std::int64_t{1} << 22}));
}

// A heap settles: what fits no gap, for its alignment, is put behind all others at first.  Where
// others have cut a gap meanwhile, that takes up to 30 steps.
constexpr int kStepsToSettle = 20, kStepsToSettleForGood = 80;
constexpr int kSteps = 10;
constexpr std::int64_t kFaultsOfAll = kSteps * kStepBytes / kPageBytes;

// Page faults of kSteps steps, behind those.
std::int64_t faults_of_steps(int steps_to_settle = kStepsToSettle) {
  for (int i = 0; i < steps_to_settle; ++i) step();
  const std::int64_t before = faults();
  for (int i = 0; i < kSteps; ++i) step();
  return faults() - before;
}

constexpr std::size_t kBlockBytes = 8 * kGivenBackBytes;

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
  used(kBlockBytes)
      .reset();  // From now on glibc takes such blocks from its heap, unless it was told.
  const std::int64_t before = resident_bytes();
  std::vector<Memory> large, small;
  for (int i = 0; i < 8; ++i) {
    large.push_back(used(kBlockBytes));
    small.push_back(used(kGivenBackBytes / 8));
  }
  large.clear();
  return static_cast<std::size_t>(resident_bytes() - before);
}

// The limits that glibc begins with; left alone it raises them, by how much depends on what came
// before.
void limit_as_at_the_start() {
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
}

class KeptMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (!kHasAllocatorOfGlibc) GTEST_SKIP() << "the allocator is not glibc's";
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // Each in a process that begins anew.
    for (const char* name :
         {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}) {
      ::unsetenv(name);
    }
  }
};

void exit_with(bool holds) { std::_Exit(holds ? 0 : 1); }

TEST_F(KeptMemory, IsNotFaultedTwice) {
  EXPECT_EXIT(
      {
        limit_as_at_the_start();
        exit_with(faults_of_steps() > kFaultsOfAll * 9 / 10);
      },
      testing::ExitedWithCode(0), "")
      << "without asking glibc gives nothing back: this test shows nothing";
  EXPECT_EXIT(
      {
        limit_as_at_the_start();
        keep_freed_memory();
        exit_with(faults_of_steps(kStepsToSettleForGood) < kFaultsOfAll / 100);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(KeptMemory, GoesBackWhenAPhaseEnds) {
  EXPECT_EXIT(
      {
        keep_freed_memory();
        step();  // Pages of torch's own code are read when it first runs.
        give_back_free_memory();
        const std::int64_t before = resident_bytes();
        step();
        const std::int64_t kept = resident_bytes() - before;
        give_back_free_memory();
        const std::int64_t left = resident_bytes() - before;
        exit_with(kept > kStepBytes * 9 / 10 && left < kStepBytes / 10);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(KeptMemory, IsFreedOnAnyThread) {
  EXPECT_EXIT(
      {
        keep_freed_memory();
        std::int64_t before = 0;
        for (int i = 0; i < kStepsToSettle + 8; ++i) {
          if (i == kStepsToSettle) before = faults();
          at::Tensor tensor = at::ones({std::int64_t{1} << 22});
          std::thread([&] { tensor.reset(); }).join();
        }
        exit_with(faults() - before < (std::int64_t{16} << 20) / kPageBytes);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(KeptMemory, IsWhatItsUserSays) {
  const std::pair<const char*, const char*> words[] = {
      {"MALLOC_TRIM_THRESHOLD_", "131072"},
      {"GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"}};
  for (const auto& [name, value] : words) {
    EXPECT_EXIT(
        {
          limit_as_at_the_start();
          ::setenv(name, value, 1);
          keep_freed_memory();
          exit_with(faults_of_steps() > kFaultsOfAll * 9 / 10);
        },
        testing::ExitedWithCode(0), "")
        << name;
    EXPECT_EXIT(
        {
          ::setenv(name, value, 1);
          give_freed_memory_back();
          exit_with(bytes_that_stay() > 4 * kBlockBytes);
        },
        testing::ExitedWithCode(0), "")
        << name;
  }
}

TEST_F(KeptMemory, GoesBackAtOnceForAProcessThatAsks) {
  EXPECT_EXIT(exit_with(bytes_that_stay() > 4 * kBlockBytes), testing::ExitedWithCode(0), "")
      << "without asking glibc keeps most: this test shows nothing";
  EXPECT_EXIT(
      {
        give_freed_memory_back();
        exit_with(bytes_that_stay() < kBlockBytes);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace penstock::offload
