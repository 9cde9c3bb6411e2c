// Signals to the launcher itself: the launcher runs in a child of the test.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "penstock/core/error.h"
#include "penstock/launch/stop_signals.h"
#include "tests/launch/roles.h"

namespace penstock::launch {
namespace {

class LauncherSignals : public LaunchTest {
 protected:
  // Starts a process that launches `options`, writes the summary and exits with the run's code, and
  // waits until every rank has written its pid.
  void start() {
    launcher_ = ::fork();
    if (launcher_ == 0) {
      ::setpgid(0, 0);
      std::ofstream told(directory / "messages");
      options.messages = &told;
      const LaunchResult result = launch(options);
      told.close();
      ::_exit(result.exit_code);
    }
    const auto named = static_cast<std::size_t>(options.nproc);
    ASSERT_TRUE(eventually([&] { return pids_in_logs().size() >= named; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // Hellos, too.
  }

  void send(int signal) const { ::kill(launcher_, signal); }

  Ending end() const { return reap(launcher_); }

  std::string told() const { return text_of(directory / "messages"); }
  static Ending exited(ExitCode code) { return {Ending::Kind::Exited, static_cast<int>(code)}; }

 private:
  pid_t launcher_ = 0;
};

TEST_F(LauncherSignals, CtrlCOnceLetsEveryRankFinishItsStepAndSave) {
  use_role("train", 2);
  start();
  send(SIGINT);
  EXPECT_EQ(end(), exited(ExitCode::Interrupted));
  for (int rank : {0, 1}) EXPECT_NE(log(rank).find("saved"), std::string::npos) << told();
  EXPECT_NE(told().find("SIGINT: stopping after the current step"), std::string::npos) << told();
}

TEST_F(LauncherSignals, SigtermIsAPreemption) {
  use_role("train", 2);
  start();
  send(SIGTERM);
  EXPECT_EQ(end(), exited(ExitCode::Preempted));
  EXPECT_NE(log(1).find("saved"), std::string::npos);
  EXPECT_NE(told().find("the same command starts it again"), std::string::npos) << told();
}

TEST_F(LauncherSignals, AFailedSaveIsTheRootCause) {
  use_role("failing save", 2);
  start();
  send(SIGTERM);
  EXPECT_EQ(end(), exited(ExitCode::Checkpoint));
  EXPECT_NE(told().find("penstock: rank 1 failed: disk full"), std::string::npos) << told();
}

TEST_F(LauncherSignals, CtrlCTwiceKillsAtOnce) {
  use_shell("trap '' INT TERM; echo pid $$; while :; do sleep 0.05; done", 2);
  options.heartbeat_seconds = 30;
  start();
  send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  send(SIGINT);
  EXPECT_EQ(end(), exited(ExitCode::Interrupted));
  EXPECT_NE(told().find("stopping at once"), std::string::npos) << told();
}

TEST_F(LauncherSignals, AForeignProgramGetsTheSignalItself) {
  use_shell("trap 'echo heard; exit 0' TERM; echo pid $$; while :; do sleep 0.05; done", 2);
  start();
  send(SIGTERM);
  EXPECT_EQ(end(), exited(ExitCode::Preempted));
  for (int rank : {0, 1}) EXPECT_NE(log(rank).find("heard"), std::string::npos) << told();
}

TEST_F(LauncherSignals, AForeignProgramThatDoesNotStopIsEndedAfterTheHeartbeat) {
  use_shell("trap '' INT; echo pid $$; while :; do sleep 0.05; done", 2);
  start();
  send(SIGINT);
  EXPECT_EQ(end(), exited(ExitCode::Interrupted));
  EXPECT_NE(told().find("ranks did not stop within 1 s of SIGINT"), std::string::npos) << told();
}

TEST_F(LauncherSignals, NobodyOutlivesAKilledLauncher) {
  use_role("train", 3);
  start();
  send(SIGKILL);
  EXPECT_EQ(end(), (Ending{Ending::Kind::Signalled, SIGKILL}));
  for (const std::int64_t pid : pids_in_logs()) {
    EXPECT_TRUE(eventually([&] { return is_gone(pid); }));
  }
}

TEST_F(LauncherSignals, NorDoTheChildrenOfItsRanks) {
  use_shell("sleep 60 & echo pid $!; echo pid $$; wait", 2);
  start();
  send(SIGKILL);
  end();
  EXPECT_EQ(pids_in_logs().size(), 4u);
  for (const std::int64_t pid : pids_in_logs()) {
    EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
  }
}

TEST_F(LauncherSignals, ALauncherThatWasItselfStoppedBlamesNobody) {
  use_role("train", 2);
  start();
  send(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  send(SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  send(SIGINT);
  EXPECT_EQ(end(), exited(ExitCode::Interrupted)) << told();
  EXPECT_EQ(told().find("stopped answering"), std::string::npos) << told();
}

TEST_F(LauncherSignals, ASignalBeforeTheRanksStartStopsThem) {
  use_shell("sleep 1000", 2);
  const StopSignals signals;
  ::raise(SIGTERM);
  const LaunchResult result = launch(options);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::Preempted));
  EXPECT_TRUE(result.stop_asked);
}

TEST_F(LauncherSignals, ASignalAfterTheRanksIsTheCallers) {
  use_shell("exit 0", 1);
  const StopSignals signals;
  EXPECT_FALSE(launch(options).stop_asked);
  ::raise(SIGINT);
  EXPECT_EQ(signals.requested(), ExitCode::Interrupted);
}

}  // namespace
}  // namespace penstock::launch
