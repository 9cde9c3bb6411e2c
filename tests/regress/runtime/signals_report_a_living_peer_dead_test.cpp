// Frequent signals ended runs: poll() fails with EINTR at a signal, which was taken for the end of
// the peer's process; and shared memory that takes longer to reserve than the time between two
// signals was begun again for ever.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "penstock/runtime/comm/shm/channel.h"
#include "penstock/runtime/comm/shm/liveness.h"

namespace penstock::comm::shm {
namespace {

class SignalsReportALivingPeerDead : public testing::Test {
 protected:
  // 5,000 signals a second, handled, without SA_RESTART.
  SignalsReportALivingPeerDead() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, &before_);
    const itimerval each = {.it_interval = {0, 200}, .it_value = {0, 200}};
    setitimer(ITIMER_REAL, &each, nullptr);
  }
  ~SignalsReportALivingPeerDead() override {
    const itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  struct sigaction before_ = {};
};

TEST_F(SignalsReportALivingPeerDead, WhoLivesIsAlive) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) pause();
  }
  const Liveness liveness(child);
  int dead = 0;
  for (int i = 0; i < 1'000'000; ++i) dead += liveness.alive() ? 0 : 1;
  EXPECT_EQ(dead, 0);
  kill(child, SIGKILL);
  while (waitpid(child, nullptr, 0) < 0) {
  }
  EXPECT_FALSE(liveness.alive());
}

TEST_F(SignalsReportALivingPeerDead, MemoryIsReservedAllTheSame) {
  Memory memory = Memory::create(std::size_t{1} << 26);
  EXPECT_EQ(memory.bytes(), std::size_t{1} << 26);
}

}  // namespace
}  // namespace penstock::comm::shm
