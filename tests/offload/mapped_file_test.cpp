#include "penstock/runtime/offload/mapped_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/round_up.h"
#include "tests/support/eventually.h"
#include "tests/support/message_of.h"
#include "tests/support/resident_bytes.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::offload {
namespace {

using testing_support::eventually;
using testing_support::message_of;
using testing_support::resident_bytes;
using testing_support::same_bits;
using testing_support::TemporaryFolder;

constexpr std::int64_t kMebibyte = 1 << 20;

at::Tensor floats(std::int64_t count) { return at::empty({count}, at::kFloat); }

TEST(MappedFile, ItsTensorsAreZerosOfTheFormOfOthers) {
  const TemporaryFolder folder;
  const MappedFile file("values", folder.path(), 4096);
  const at::Tensor like = at::empty({3, 5}, at::kDouble).t();
  const at::Tensor tensor = file.tensor(128, like);
  EXPECT_EQ(tensor.sizes(), like.sizes());
  EXPECT_EQ(tensor.strides(), like.strides());
  EXPECT_EQ(tensor.scalar_type(), at::kDouble);
  EXPECT_EQ(tensor.count_nonzero().item<std::int64_t>(), 0);
  EXPECT_EQ(file.tensor(0, floats(0)).numel(), 0);
}

TEST(MappedFile, KnowsWhereItsTensorsAre) {
  const TemporaryFolder folder;
  const MappedFile file("values", folder.path(), 4096);
  const Bytes bytes = file.bytes_of(file.tensor(128, floats(100)).narrow(0, 10, 5));
  EXPECT_EQ(bytes.first, 128 + 40);
  EXPECT_EQ(bytes.count, 20);
  EXPECT_EQ(file.bytes_of(file.tensor(0, floats(0))).count, 0);
}

TEST(MappedFile, GrowsWhileItsTensorsStayWhereTheyAre) {
  const TemporaryFolder folder;
  MappedFile file("values", folder.path());
  EXPECT_EQ(file.bytes(), 0);
  std::vector<at::Tensor> tensors;
  std::vector<const void*> places;
  for (const std::int64_t count : {1000, 3, 0, 300000, 1}) {
    tensors.push_back(file.append(floats(count)));
    EXPECT_EQ(tensors.back().count_nonzero().item<std::int64_t>(), 0);
    places.push_back(tensors.back().fill_(static_cast<double>(count)).const_data_ptr());
    file.let_go(file.bytes_of(tensors.back()));
  }
  EXPECT_EQ(file.bytes(), round_up(round_up(4000 + 32 + 12, 64) + 1200000, 64) + 4);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].const_data_ptr(), places[i]);
    EXPECT_TRUE(tensors[i].eq(static_cast<double>(tensors[i].numel())).all().item<bool>()) << i;
  }
}

TEST(MappedFile, GrowsNoFurtherThanItsFolderHasRoom) {
  const TemporaryFolder folder;
  MappedFile file("values", folder.path());
  const at::Tensor first = file.append(floats(10)).fill_(3);
  struct statvfs space{};
  ASSERT_EQ(::statvfs(folder.path().c_str(), &space), 0);
  const auto more = static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
  const at::Tensor like = at::empty({more}, at::TensorOptions(at::kFloat).device(at::kMeta));
  const std::string message = message_of([&] { file.append(like); });
  EXPECT_NE(message.find("has no room for"), std::string::npos) << message;
  EXPECT_TRUE(first.eq(3).all().item<bool>());
}

TEST(MappedFile, HasNoNameAndGoesWithItsLastTensor) {
  const TemporaryFolder folder;
  std::optional<MappedFile> file(std::in_place, "values", folder.path(), kMebibyte);
  const at::Tensor tensor = file->tensor(0, floats(1000)).fill_(7);
  EXPECT_TRUE(folder.names().empty());
  const void* const address = tensor.data_ptr();
  file.reset();
  EXPECT_EQ(tensor.sum().item<double>(), 7000.0);
  EXPECT_GE(resident_bytes(address), 4000);
}

// Of two halves the second stays, but for what may have been mapped with the end of the first.
TEST(MappedFile, WhatIsLetGoTakesNoMemoryAndIsThereWhenItIsUsed) {
  const TemporaryFolder folder;
  MappedFile file("values", folder.path(), 16 * kMebibyte);
  const at::Tensor half = floats(2 * kMebibyte);
  const at::Tensor first = file.tensor(0, half).copy_(at::arange(2 * kMebibyte));
  const at::Tensor second = file.tensor(8 * kMebibyte, half).copy_(at::arange(2 * kMebibyte));
  EXPECT_EQ(resident_bytes(first.data_ptr()), 16 * kMebibyte);
  file.let_go({.first = 0, .count = 8 * kMebibyte});
  EXPECT_LE(resident_bytes(first.data_ptr()), 8 * kMebibyte);
  EXPECT_GT(resident_bytes(first.data_ptr()), 8 * kMebibyte - (64 << 10));
  file.let_go({.first = 8 * kMebibyte, .count = 8 * kMebibyte});
  EXPECT_EQ(resident_bytes(first.data_ptr()), 0);
  file.let_go({.first = 0, .count = 0});
  EXPECT_TRUE(same_bits(first, at::arange(2 * kMebibyte, at::kFloat)));
  EXPECT_TRUE(same_bits(second, first));
}

// The kernel maps more than is read.
TEST(MappedFile, WhatIsBesideWhatWasReadIsLetGoWithIt) {
  const TemporaryFolder folder;
  MappedFile file("values", folder.path(), kMebibyte);
  const at::Tensor all = file.tensor(0, floats(kMebibyte / 4)).fill_(1);
  file.let_go({.first = 0, .count = kMebibyte});
  const at::Tensor some = all.narrow(0, 100'000, 10);
  EXPECT_EQ(some.sum().item<double>(), 10.0);
  file.let_go(file.bytes_of(some));
  EXPECT_EQ(resident_bytes(all.data_ptr()), 0);
}

// In the kernel's memory, not yet in this process's.
std::int64_t bytes_in_cache(const at::Tensor& tensor) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((tensor.nbytes() + page - 1) / page);
  EXPECT_EQ(::mincore(tensor.data_ptr(), tensor.nbytes(), pages.data()), 0);
  const auto in_memory = std::ranges::count_if(pages, [](int state) { return (state & 1) != 0; });
  return static_cast<std::int64_t>(page) * in_memory;
}

// Reading ahead is advice: a kernel that is short of memory leaves some out.
TEST(MappedFile, WhatIsReadAheadComesWithoutBeingUsed) {
  const TemporaryFolder folder;
  MappedFile file("values", folder.path(), 64 * kMebibyte);
  const at::Tensor tensor = file.tensor(0, floats(16 * kMebibyte)).fill_(1);
  constexpr std::chrono::minutes kAMinute{1};
  const auto let_go = [&] {
    file.let_go({.first = 0, .count = 64 * kMebibyte});  // What is written, which takes a moment.
    return bytes_in_cache(tensor) < 8 * kMebibyte;
  };
  EXPECT_TRUE(eventually(let_go, kAMinute));
  file.read_ahead({.first = 0, .count = 64 * kMebibyte});
  EXPECT_EQ(resident_bytes(tensor.data_ptr()), 0);
  EXPECT_TRUE(eventually([&] { return bytes_in_cache(tensor) > 56 * kMebibyte; }, kAMinute));
}

TEST(MappedFile, AFolderThatCannotBeUsedIsAnErrorThatNamesIt) {
  const TemporaryFolder folder;
  const auto refused = [](const std::string& path) {
    EXPECT_THROW(MappedFile("states", path, kMebibyte), ConfigError);
    return message_of([&] { MappedFile("states", path, kMebibyte); });
  };
  EXPECT_EQ(refused(folder.file("none")),
            "states: cannot make a file in the folder \"" + folder.file("none") +
                "\": No such file or directory\n  note: give a folder that is there, and that all "
                "ranks may write to");
  EXPECT_NE(refused("/proc").find("cannot make a file in the folder \"/proc\""), std::string::npos);
}

// Nothing is written to find that out: this is more than the file system has.
TEST(MappedFile, ADiskThatIsFullIsAnErrorBeforeAnythingIsWritten) {
  struct statvfs space{};
  if (::statvfs("/dev/shm", &space) != 0) GTEST_SKIP() << "there is no /dev/shm to be filled";
  const auto bytes = static_cast<std::int64_t>((space.f_blocks + 1) * space.f_frsize);
  EXPECT_THROW(MappedFile("states", "/dev/shm", bytes), ConfigError);
  const std::string message = message_of([&] { MappedFile("states", "/dev/shm", bytes); });
  EXPECT_NE(message.find("states: the folder \"/dev/shm\" has no room for"), std::string::npos)
      << message;
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
  EXPECT_NE(message.find("bytes are free there"), std::string::npos) << message;
}

}  // namespace
}  // namespace penstock::offload
