#include "penstock/runtime/offload/system_memory.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/support/resident_bytes.h"

namespace penstock::offload {
namespace {

using testing_support::resident_bytes;

constexpr std::int64_t kElements = kOwnMemoryBytes / 4;

bool is_mapped(void* page) { return ::msync(page, 1, MS_ASYNC) == 0; }

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

}  // namespace
}  // namespace penstock::offload
