// The launcher on a system that refuses the calls by which it would rather start and end processes.
#include "tests/support/refused_calls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "penstock/launch/close_descriptors.h"
#include "penstock/launch/guard.h"
#include "penstock/launch/process.h"
#include "penstock/launch/rank_environment.h"
#include "tests/support/in_child.h"

namespace penstock::launch {
namespace {

using testing_support::in_child;
using testing_support::refuse;
using testing_support::RefusedCall;

class RefusedLaunchCalls : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!in_child([] { return refuse(SYS_statx, ENOSYS); })) GTEST_SKIP() << "no seccomp filters";
  }
  // Whether `body` is true in a process without these calls.
  template <class Body>
  bool without(std::initializer_list<RefusedCall> calls, const Body& body) const {
    return in_child([&] {
      for (const RefusedCall& call : calls) refuse(call, GetParam());
      return body();
    });
  }
};

// Of some descriptors, low and high, whether exactly one stays open.
bool closes_all_but_one() {
  const int file = ::open("/dev/null", O_RDONLY);
  const int kept = ::dup2(file, 200);
  for (const int other : {3, 199, 201, 900}) ::dup2(file, other);
  close_all_but(kept);
  for (int number = 0; number < 1000; ++number) {
    if ((::fcntl(number, F_GETFD) >= 0) != (number == kept)) return false;
  }
  return true;
}

TEST_P(RefusedLaunchCalls, AllDescriptorsButOneAreClosed) {
  EXPECT_TRUE(without({}, closes_all_but_one));
  EXPECT_TRUE(without({SYS_close_range}, closes_all_but_one));
  EXPECT_TRUE(without({SYS_close_range, SYS_getdents64}, closes_all_but_one));
  EXPECT_TRUE(
      without({SYS_close_range, RefusedCall(SYS_openat, 2, O_DIRECTORY)}, closes_all_but_one));
}

// The guard would keep its own copy of the end by which it hears that the launcher has ended.
TEST_P(RefusedLaunchCalls, TheGuardEnds) {
  EXPECT_TRUE(without({SYS_close_range}, [] {
    {
      const Guard guard;
    }
    return true;
  }));
}

TEST_P(RefusedLaunchCalls, AProcessIsStartedAndWaitedFor) {
  EXPECT_TRUE(without({SYS_pidfd_open, SYS_prctl, SYS_pipe2, SYS_sched_getaffinity}, [] {
    const Process process = start_process({.path = "/bin/sh", .arguments = {"sh", "-c", "exit 7"}});
    return !process.pidfd && reap(process.pid) == Ending{Ending::Kind::Exited, 7} &&
           threads_of_rank(1) >= 1;
  }));
}

INSTANTIATE_TEST_SUITE_P(Errors, RefusedLaunchCalls, testing::Values(ENOSYS, EPERM),
                         [](const auto& test) {
                           return test.param == ENOSYS ? "Absent" : "Refused";
                         });

}  // namespace
}  // namespace penstock::launch
