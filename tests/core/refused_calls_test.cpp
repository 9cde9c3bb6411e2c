// Every Linux call of core/ that has another way, refused as an older kernel and a filter do it.
#include "tests/support/refused_calls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <string>

#include "penstock/core/background_thread.h"
#include "penstock/core/error.h"
#include "penstock/core/grow_file.h"
#include "penstock/core/new_file.h"
#include "penstock/core/pipe.h"
#include "penstock/core/random_bytes.h"
#include "penstock/core/unnamed_file.h"
#include "penstock/core/wake_up.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using testing_support::RefusedCall;
using testing_support::under_refusal;

class RefusedCalls : public testing::TestWithParam<int> {
 protected:
  template <class Body>
  void refused(const RefusedCall& call, const Body& body) {
    if (!under_refusal(call, GetParam(), body)) GTEST_SKIP() << "no seccomp filters here";
  }
};

TEST_P(RefusedCalls, APipeClosesWhenAProgramIsExecuted) {
  refused(SYS_pipe2, [] {
    const Pipe pipe = make_pipe("test");
    ASSERT_TRUE(pipe.reading && pipe.writing);
    EXPECT_EQ(::write(pipe.writing.get(), "x", 1), 1);
    char byte = 0;
    EXPECT_EQ(::read(pipe.reading.get(), &byte, 1), 1);
    for (const FileDescriptor* end : {&pipe.reading, &pipe.writing}) {
      EXPECT_NE(::fcntl(end->get(), F_GETFD) & FD_CLOEXEC, 0);
    }
  });
}

TEST_P(RefusedCalls, AThreadIsWokenWithoutEventfd) {
  refused(SYS_eventfd2, [] {
    WakeUp wake_up("test");
    pollfd ready{.fd = wake_up.descriptor(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&ready, 1, 0), 0);
    wake_up.wake();
    EXPECT_EQ(::poll(&ready, 1, 0), 1);
  });
}

TEST_P(RefusedCalls, RandomBytesDiffer) {
  refused(SYS_getrandom, [] {
    std::array<std::byte, 16> a{}, b{};
    fill_with_random_bytes(a);
    fill_with_random_bytes(b);
    EXPECT_NE(a, b);
  });
}

TEST_P(RefusedCalls, AFileWithoutANameLeavesNone) {
  refused(RefusedCall(SYS_openat, 2, O_TMPFILE & ~O_DIRECTORY), [] {
    std::string folder = testing::TempDir() + "unnamed-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const FileDescriptor file = open_unnamed(folder);
    ASSERT_TRUE(file);
    EXPECT_EQ(::write(file.get(), "text", 4), 4);
    EXPECT_TRUE(fs::is_empty(folder));
    fs::remove(folder);
  });
}

TEST_P(RefusedCalls, AFileGrowsByZerosAndKeepsWhatItHas) {
  refused(SYS_fallocate, [] {
    const FileDescriptor file = open_unnamed(testing::TempDir());
    ASSERT_EQ(::pwrite(file.get(), "text", 4, 0), 4);
    EXPECT_EQ(grow_file(file.get(), 4, (3 << 20) + 1), 0);
    struct stat status{};
    ASSERT_EQ(::fstat(file.get(), &status), 0);
    EXPECT_EQ(status.st_size, 4 + (3 << 20) + 1);
    EXPECT_GE(status.st_blocks * 512, 3 << 20);  // It has its room.
    std::array<char, 6> bytes{};
    ASSERT_EQ(::pread(file.get(), bytes.data(), bytes.size(), 0), 6);
    EXPECT_EQ(std::string(bytes.data(), 6), std::string("text\0\0", 6));
  });
}

TEST_P(RefusedCalls, AFullDiskIsToldWhenAFileGrows) {
  refused(SYS_fallocate, [] {
    const FileDescriptor full(::open("/dev/full", O_RDWR | O_CLOEXEC));
    EXPECT_EQ(grow_file(full.get(), 0, 1), ENOSPC);
  });
}

TEST_P(RefusedCalls, ALongFileIsWrittenWithoutSyncFileRange) {
  refused(SYS_sync_file_range, [] {
    const std::string path = testing::TempDir() + "long-file";
    fs::remove(path);
    const std::string block(std::size_t{17} << 20, 'x');
    NewFile file(path, path);
    file.write(block);
    file.finish();
    EXPECT_EQ(fs::file_size(path), block.size());
    fs::remove(path);
  });
}

// The C library goes on without clone3 only where the kernel lacks it.
TEST_P(RefusedCalls, AThreadStartsOrTheContainerIsNamed) {
  refused(SYS_clone3, [] {
    try {
      bool has_run = false;
      start_background_thread([&] { has_run = true; }).join();
      EXPECT_TRUE(has_run);
    } catch (const ConfigError& error) {
      EXPECT_EQ(GetParam(), EPERM);
      EXPECT_STREQ(error.message().c_str(), "cannot start a thread: Operation not permitted");
      EXPECT_NE(std::string(error.what()).find("clone3"), std::string::npos) << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Errors, RefusedCalls, testing::Values(ENOSYS, EPERM),
                         [](const auto& test) {
                           return test.param == ENOSYS ? "Absent" : "Refused";
                         });

}  // namespace
}  // namespace penstock
