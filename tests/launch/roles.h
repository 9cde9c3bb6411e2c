// Ranks for the process tests: this test program, run again as a rank by a variable.
//
// roles_test.cpp plays the roles; the tests below launch them.  A role is a small training loop on
// a real ControlClient, with one fault at step kFaultStep of one rank.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/launch/launcher.h"
#include "tests/support/eventually.h"

namespace penstock::launch {

using testing_support::eventually;

inline constexpr const char* kRoleVariable = "PENSTOCK_LAUNCH_TEST_ROLE";
inline constexpr const char* kFaultyRankVariable = "PENSTOCK_LAUNCH_TEST_FAULTY_RANK";
inline constexpr int kFaultStep = 3;

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline bool is_gone(std::int64_t pid) {
  const char state = process_state(pid);
  return state == '?' || state == 'Z' || state == 'X';
}

// A folder for logs, short limits, and the promise that nothing is left behind: no child of this
// process, no process that a rank named by "pid N" in its log, and no descriptor.
class LaunchTest : public testing::Test {
 protected:
  LaunchTest() {
    std::string pattern = testing::TempDir() + "penstock-launch-XXXXXX";
    directory = ::mkdtemp(pattern.data());
    options.log_dir = directory / "logs";
    options.heartbeat_seconds = 1;
    options.startup_seconds = 5;
    options.grace_seconds = 1.5;
    options.messages = &messages;
    descriptors_before_ = count_descriptors();
  }

  ~LaunchTest() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(count_descriptors(), descriptors_before_);
    for (const std::int64_t pid : pids_in_logs()) {
      EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << "process " << pid << " is left";
    }
    std::filesystem::remove_all(directory);
  }

  // Every rank plays `role`; see roles_test.cpp.
  void use_role(const std::string& role, int nproc, int faulty_rank = 1) {
    options.nproc = nproc;
    options.program = {"/proc/self/exe"};
    options.environment = {{kRoleVariable, role},
                           {kFaultyRankVariable, str(faulty_rank)},
                           {"TSAN_OPTIONS", "atexit_sleep_ms=0"}};  // _exit at once.
  }

  void use_shell(const std::string& script, int nproc) {
    options.nproc = nproc;
    options.program = {"sh", "-c", script};
  }

  LaunchResult run() const { return launch(options); }

  std::string log(int rank) const {
    return text_of(directory / "logs" / str("rank-", rank, ".log"));
  }

  std::vector<std::int64_t> pids_in_logs() const {
    std::vector<std::int64_t> pids;
    for (int rank = 0; rank < options.nproc; ++rank) {
      std::istringstream lines(log(rank));
      std::string word;
      while (lines >> word) {
        std::int64_t pid = 0;
        if (word == "pid" && lines >> pid) pids.push_back(pid);
      }
    }
    return pids;
  }

  static std::ptrdiff_t count_descriptors() {
    using Iterator = std::filesystem::directory_iterator;
    return std::distance(Iterator("/proc/self/fd"), Iterator());
  }

  std::filesystem::path directory;
  LaunchOptions options;
  std::ostringstream messages;

 private:
  std::ptrdiff_t descriptors_before_ = 0;
};

}  // namespace penstock::launch
