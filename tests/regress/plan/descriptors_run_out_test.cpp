// A process without a free descriptor saved all the same: neither was the folder's name flushed to
// the disk, nor were other processes kept from saving to it, and nobody was told.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "penstock/core/file_descriptor.h"
#include "penstock/core/new_file.h"
#include "penstock/core/output_lock.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

// For as long as it lives, this process may open no more files.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const FileDescriptor next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit none{static_cast<rlim_t>(next.get()), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_ = {};
};

TEST(DescriptorsRunOut, AFolderThatIsNotFlushedOrLockedIsAnError) {
  const testing_support::TemporaryFolder folder;
  std::string flushed;
  std::string locked;
  {
    const NoMoreFiles none;
    flushed = testing_support::message_of([&] { flush_folder(folder.path()); });
    locked = testing_support::message_of(
        [&] { const OutputLock lock = OutputLock::of_folder(folder.path(), "checkpoints"); });
  }
  for (const std::string& message : {flushed, locked}) {
    EXPECT_NE(message.find(folder.path()), std::string::npos) << message;
    EXPECT_NE(message.find("Too many open files"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace penstock
