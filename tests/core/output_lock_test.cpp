#include "penstock/core/output_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

using testing_support::message_of;
using testing_support::TemporaryFolder;
using With = OutputLock::With;
using Names = std::vector<std::string>;

// A process that has a lock until it is killed.
class Owner {
 public:
  template <class Take>
  explicit Owner(const Take& take) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    process_ = ::fork();
    if (process_ == 0) {
      const OutputLock lock = take();
      [[maybe_unused]] const ssize_t written = ::write(ready[1], "x", 1);
      ::pause();
      ::_exit(0);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Owner() { kill(); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
};

TEST(OutputLock, TheSecondOwnerIsToldOfTheFirst) {
  const TemporaryFolder folder;
  const Owner first([&] { return OutputLock::of_folder(folder.path(), "a run"); });
  const std::string message = message_of([&] { OutputLock::of_folder(folder.path(), "weights"); });
  EXPECT_EQ(message.find(str("cannot write weights to \"", folder.path(), "\": process ",
                             first.process(), " of ")),
            0u)
      << message;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  for (const std::string& part : {str(" on ", host, " writes there since 2"), str("plan_tests")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(OutputLock, EndsWithItsProcessAndLeavesNothing) {
  const TemporaryFolder folder;
  Owner first([&] { return OutputLock::of_folder(folder.path(), "a run"); });
  first.kill();
  EXPECT_EQ(folder.names(), Names{OutputLock::kFileName}) << "SIGKILL leaves the file";
  {
    const OutputLock second = OutputLock::of_folder(folder.path(), "a run");
  }
  EXPECT_EQ(folder.names(), Names{});
}

TEST(OutputLock, OfAPathIsBesideIt) {
  const TemporaryFolder folder;
  const OutputLock lock = OutputLock::of_path(folder.file("model"), "a model");
  EXPECT_EQ(folder.names(), Names{".model.penstock-lock"});
  EXPECT_NE(message_of([&] { OutputLock::of_path(folder.file("model"), "a model"); }).find("since"),
            std::string::npos);
  const OutputLock other = OutputLock::of_path(folder.file("other"), "a model");
}

TEST(OutputLock, LetsInTheOwnersRanksAlone) {
  const TemporaryFolder folder;
  std::optional<OutputLock> launcher;
  launcher.emplace(OutputLock::of_folder(folder.path(), "a run", With::OwnRanks));
  EXPECT_EQ(message_of([&] { OutputLock::of_folder(folder.path(), "weights"); }), "no error");
  EXPECT_EQ(folder.names(), Names{OutputLock::kFileName}) << "who was let in removes nothing";
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    ::setenv(lock_variable().first.c_str(), "another word", 1);
    ::execl("/proc/self/exe", "plan_tests", "--gtest_filter=OutputLock.DISABLED_Stranger",
            "--gtest_also_run_disabled_tests", folder.path().c_str(), nullptr);
    ::_exit(126);
  }
  int status = 0;
  ::waitpid(stranger, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// In a process of its own: is kept out of the folder that is its last word.
TEST(OutputLock, DISABLED_Stranger) {
  std::ifstream words("/proc/self/cmdline", std::ios::binary);
  std::string folder;
  for (std::string word; std::getline(words, word, '\0');) folder = word;
  EXPECT_NE(
      message_of([&] { OutputLock::of_folder(folder, "weights"); }).find("writes there since"),
      std::string::npos);
}

TEST(OutputLock, SharesAFolderWithOthersWhoDo) {
  const TemporaryFolder folder;
  const Owner first([&] { return OutputLock::of_folder(folder.path(), "a corpus", With::Others); });
  std::optional<OutputLock> second;
  second.emplace(OutputLock::of_folder(folder.path(), "a corpus", With::Others));
  const auto alone = [&] { OutputLock::of_folder(folder.path(), "a run"); };
  EXPECT_NE(message_of(alone).find("writes there since"), std::string::npos);
  second.reset();
  EXPECT_EQ(folder.names(), Names{OutputLock::kFileName}) << "the first has it still";
  EXPECT_NE(message_of(alone).find("writes there since"), std::string::npos);
}

TEST(OutputLock, AForkOfItsOwnerRemovesNothing) {
  const TemporaryFolder folder;
  auto lock = std::make_optional(OutputLock::of_folder(folder.path(), "a run"));
  const pid_t fork = ::fork();
  if (fork == 0) {
    lock.reset();
    ::_exit(0);
  }
  ::waitpid(fork, nullptr, 0);
  EXPECT_EQ(folder.names(), Names{OutputLock::kFileName});
}

// Whether somebody else was there, too, while this process had the lock.
bool meets_another(const TemporaryFolder& folder) {
  bool met = false;
  message_of([&] {
    const OutputLock lock = OutputLock::of_path(folder.file("x"), "it");
    const FileDescriptor mine(::open(folder.file("mine").c_str(), O_CREAT | O_EXCL, 0600));
    met = !mine;
    if (mine) ::unlink(folder.file("mine").c_str());
  });
  return met;
}

// Its file is removed and made anew all the time.
TEST(OutputLock, HasOneOwnerAtATime) {
  constexpr int kTimes = 300;
  const TemporaryFolder folder;
  const pid_t other = ::fork();
  int met = 0;
  for (int i = 0; i < kTimes; ++i) met += meets_another(folder) ? 1 : 0;
  if (other == 0) ::_exit(met > 0 ? 1 : 0);
  int status = 0;
  ::waitpid(other, &status, 0);
  EXPECT_EQ(met + WEXITSTATUS(status), 0);
  EXPECT_EQ(folder.names(), Names{});
}

TEST(OutputLock, TheLockFileOfAStrangerIsNotFollowed) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("precious")) << "text";
  ASSERT_EQ(::symlink("precious", folder.file(OutputLock::kFileName).c_str()), 0);
  EXPECT_NE(message_of([&] { OutputLock::of_folder(folder.path(), "a run"); }).find("cannot open"),
            std::string::npos);
  std::string text;
  std::ifstream(folder.file("precious")) >> text;
  EXPECT_EQ(text, "text");
}

}  // namespace
}  // namespace penstock
