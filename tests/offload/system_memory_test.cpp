#include "penstock/runtime/offload/system_memory.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/support/glibc_allocator.h"
#include "tests/support/resident_bytes.h"

namespace penstock::offload {
namespace {

using testing_support::kHasAllocatorOfGlibc;
using testing_support::resident_bytes;

constexpr std::int64_t kElements = kOwnMemoryBytes / 4;

bool is_mapped(void* page) { return ::msync(page, 1, MS_ASYNC) == 0; }

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

TEST(SystemMemory, IsZerosAndGoesBackAtOnce) {
  at::Tensor large = zeros_of_system({2, kElements}, at::TensorOptions().dtype(at::kFloat));
  EXPECT_TRUE(large.equal(at::zeros({2, kElements})));
  void* const place = large.mutable_data_ptr();
  ASSERT_TRUE(is_mapped(place));
  large.reset();
  EXPECT_FALSE(is_mapped(place));
  EXPECT_EQ(errno, ENOMEM);
}

TEST(SystemMemory, IsWhatAStorageIsGivenAgain) {
  const at::Tensor large = zeros_of_system({kElements}, at::TensorOptions().dtype(at::kFloat));
  c10::StorageImpl* const storage = large.storage().unsafeGetStorageImpl();
  void* const first = large.mutable_data_ptr();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  EXPECT_FALSE(is_mapped(first));
  storage->set_data_ptr_noswap(storage->allocator()->allocate(storage->nbytes()));
  EXPECT_TRUE(large.equal(at::zeros({kElements})));
  void* const second = large.mutable_data_ptr();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  EXPECT_FALSE(is_mapped(second));
}

TEST(SystemMemory, MayBeWithoutMemoryUntilItIsGivenSome) {
  for (const std::int64_t elements : {std::int64_t{7}, kElements}) {
    const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);
    const at::Tensor tensor = without_memory({2, elements}, options);
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    EXPECT_EQ(tensor[1].sizes(), at::IntArrayRef({elements}));
    EXPECT_EQ(storage->data(), nullptr);
    EXPECT_EQ(storage->allocator(), zeros_of_system({2, elements}, options).storage().allocator());
  }
}

TEST(SystemMemory, SmallTensorsAndOtherTypesAreZerosToo) {
  for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{7}, 2 * kElements}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::TensorOptions options = at::TensorOptions().dtype(type);
      const at::Tensor tensor = zeros_of_system({1, elements}, options);
      EXPECT_EQ(tensor.scalar_type(), type);
      EXPECT_TRUE(tensor.equal(at::zeros({1, elements}, options))) << elements << " of " << type;
    }
  }
}

TEST(FreedMemory, GoesBackToTheSystemForAProcessThatAsks) {
  if (!kHasAllocatorOfGlibc) GTEST_SKIP() << "the allocator is not glibc's";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // Each in a process that begins anew.
  ::unsetenv("MALLOC_MMAP_THRESHOLD_");
  const auto exit_with = [](bool holds) { std::_Exit(holds ? 0 : 1); };
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
