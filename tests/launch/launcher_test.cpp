// Launches of real processes: what ranks get, how runs end, what is said about it.
#include "penstock/launch/launcher.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>

#include "penstock/core/error.h"
#include "penstock/launch/port.h"
#include "tests/launch/roles.h"

namespace penstock::launch {
namespace {

class Launcher : public LaunchTest {
 protected:
  std::string error_of_launch() {
    try {
      run();
      return "no error";
    } catch (const ConfigError& error) {
      return error.what();
    }
  }
  std::string write_file(const std::string& name, const std::string& text, int mode) {
    const std::filesystem::path path = directory / name;
    std::ofstream(path) << text;
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(mode));
    return path;
  }
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Launcher, ARankGetsItsVariables) {
  use_shell(
      "echo $RANK/$LOCAL_RANK of $WORLD_SIZE/$LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT "
      "$EXTRA [$TORCHELASTIC_RUN_ID] threads $OMP_NUM_THREADS $PENSTOCK_HEARTBEAT_SECONDS",
      2);
  options.environment = {{"EXTRA", "more"}, {"OMP_NUM_THREADS", "7"}};
  ::setenv("TORCHELASTIC_RUN_ID", "outer", 1);
  const LaunchResult result = run();
  ::unsetenv("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(summary(result), "");
  EXPECT_EQ(log(0).substr(0, 28), "0/0 of 2/2 at 127.0.0.1:" + log(0).substr(24, 4));
  EXPECT_HAS(log(1), "1/1 of 2/2 at 127.0.0.1:");
  EXPECT_HAS(log(1), " more [] threads 7 1\n");
}

TEST_F(Launcher, CoresAreShared) {
  use_shell("echo threads $OMP_NUM_THREADS", 1000);
  options.nproc = 2;
  ::unsetenv("OMP_NUM_THREADS");
  run();
  EXPECT_HAS(log(0), "threads ");
  EXPECT_GE(std::atoi(log(0).substr(8).c_str()), 1);
}

TEST_F(Launcher, OnlyItsOwnDescriptorsReachARank) {
  use_shell(
      "ls /proc/self/fd | tr '\\n' ' '; echo; echo $PENSTOCK_CONTROL_FD ${PENSTOCK_STORE_FD-none}; "
      "ls -l /proc/self/fd/$PENSTOCK_CONTROL_FD",
      2);
  options.store_socket = StoreSocket::Launcher;
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_HAS(log(0), "socket:");
  EXPECT_HAS(log(1), "none");
  EXPECT_EQ(log(0).find("none"), std::string::npos);
}

TEST_F(Launcher, RankZeroGetsAListeningSocketOnTheMasterPort) {
  options.store_socket = StoreSocket::Launcher;
  options.nproc = 2;
  options.program = {"python3", "-c", R"(
import os, socket
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.socket(fileno=int(os.environ["PENSTOCK_STORE_FD"]))
    connection, _ = server.accept()
    print("heard", connection.recv(5).decode())
else:
    assert "PENSTOCK_STORE_FD" not in os.environ
    socket.create_connection(("127.0.0.1", port)).send(b"hello")
)"};
  EXPECT_EQ(run().exit_code, 0) << log(0) << log(1);
  EXPECT_EQ(log(0), "heard hello\n");
}

TEST_F(Launcher, AShortTrainingEndsWell) {
  use_role("short", 3);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0) << summary(result);
  EXPECT_EQ(result.endings, std::vector<Ending>(3));
  for (int rank = 0; rank < 3; ++rank) EXPECT_HAS(log(rank), "done");
}

TEST_F(Launcher, AForeignProgramsExitCodeIsTheRuns) {
  use_shell("echo pid $$; [ $RANK = 1 ] && exit 7; sleep 60", 3);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.root_cause, "rank 1 exited 7");
  EXPECT_EQ(result.notes.back(), "2 other ranks were ended (2 by SIGTERM)");
}

TEST_F(Launcher, AKilledRankIsNamedAndTheOthersEnd) {
  use_role("kill", 4, 2);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.root_cause, str("rank 2 was killed by SIGKILL; last seen at step ", kFaultStep,
                                   ", instruction 1F3"));
  const std::string text = summary(result);
  EXPECT_EQ(text.find("penstock: rank 2 was killed by SIGKILL"), 0u) << text;
  EXPECT_HAS(text, "\n  note: rank 0: step 3, waiting for rank 2 in 0RECV_B3 (");
  EXPECT_HAS(text, "\n  note: output: " + options.log_dir + "/rank-2.log");
  EXPECT_HAS(text, "\n  note: 3 other ranks were ended (3 exited 4)");
  EXPECT_EQ(messages.str(), text);
}

TEST_F(Launcher, RanksThatFollowADeathAreNotTheCause) {
  use_role("kill and follow", 3, 0);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.root_cause.find("rank 0 was killed by SIGKILL"), 0u) << result.root_cause;
  EXPECT_HAS(summary(result), "note: rank 1 then reported: lost rank 0");
}

TEST_F(Launcher, ACrashIsNamed) {
  use_role("crash", 2);
  EXPECT_HAS(run().root_cause, "rank 1 was killed by SIGSEGV; last seen at step 3");
}

TEST_F(Launcher, AnErrorReportBeatsTheDeathsThatFollow) {
  use_role("error", 3);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_EQ(result.root_cause, "rank 1 failed at step 3, instruction 1B3: loss is nan");
  EXPECT_EQ(result.notes.front(), "stage 1");
}

TEST_F(Launcher, AnExitWithoutAReportIsNamed) {
  use_role("exit", 2, 0);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_HAS(result.root_cause, "rank 0 exited 3 without a report");
}

TEST_F(Launcher, AStoppedRankIsFoundWithinTheHeartbeat) {
  for (const int stopped : {0, 1}) {
    use_role("stop", 2, stopped);
    const LaunchResult result = run();
    EXPECT_EQ(result.exit_code, 5);
    EXPECT_HAS(result.root_cause, str("rank ", stopped, " stopped answering for "));
    EXPECT_HAS(result.root_cause, "is stopped by SIGSTOP; last seen at step 3, instruction 1F3)");
    EXPECT_HAS(summary(result),
               str("rank ", 1 - stopped, ": step 3, waiting for rank ", stopped, " in 0RECV_B3"));
  }
}

TEST_F(Launcher, AHangNamesTheRankThatWaitsForNobody) {
  use_role("hang", 3, 2);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_HAS(result.root_cause, "no rank made progress for 1.");
  EXPECT_HAS(result.root_cause, "rank 2 waits for nobody at step 3, instruction 1F3");
}

TEST_F(Launcher, ADeadlockShowsTheRing) {
  use_role("ring", 2);
  EXPECT_HAS(run().root_cause, "rank 0 waits for rank 1, which waits for rank 0");
}

TEST_F(Launcher, AStartUpThatHangsSaysWhereEveryRankIs) {
  use_role("start-up", 2);
  options.startup_seconds = 1;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_HAS(result.root_cause, "before the first step");
  EXPECT_HAS(result.root_cause, "rank 0 waits for nobody at connecting");
  EXPECT_HAS(result.root_cause, "rank 1 waits for nobody at loading weights");
}

TEST_F(Launcher, ARankThatNeverReportsIsFoundWhereItMust) {
  use_shell("sleep 60", 2);
  options.startup_seconds = 0.3;
  options.channel = ControlChannel::Required;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_HAS(result.root_cause, "has not reported yet");
}

TEST_F(Launcher, GarbageOnTheChannelIsCountedAndHarmless) {
  use_role("garbage", 2);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_HAS(result.root_cause, "rank 1 exited 9 without a report");
  EXPECT_HAS(summary(result), "rank 1 sent 3 unreadable messages on its control channel");
}

TEST_F(Launcher, AnEarlyEndInGoodOrderIsNotAFailure) {
  use_role("early end", 2);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_EQ(result.root_cause, "stopped before the last step");
}

TEST_F(Launcher, ChildrenOfARankEndWithIt) {
  use_shell("sleep 60 & echo pid $!; sleep 60 & echo pid $!; exit 0", 2);
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_EQ(pids_in_logs().size(), 4u);
}

TEST_F(Launcher, ARankThatIgnoresSigtermIsKilledAfterTheGrace) {
  use_shell(
      "trap '' TERM; echo pid $$; [ $RANK = 1 ] && sleep 0.3 && exit 1; "
      "while :; do sleep 0.05; done",
      2);
  options.grace_seconds = 0.4;
  const LaunchResult result = run();
  EXPECT_EQ(result.endings[0], (Ending{Ending::Kind::Signalled, SIGKILL}));
}

TEST_F(Launcher, APortThatIsTakenIsNamedWithItsHolder) {
  const Port taken = listen_on("127.0.0.1", 0);
  options.master_port = taken.number;
  use_shell("exit 0", 2);
  for (const StoreSocket socket : {StoreSocket::Program, StoreSocket::Launcher}) {
    options.store_socket = socket;
    const std::string error = error_of_launch();
    EXPECT_HAS(error, str("master port ", taken.number, " on 127.0.0.1 is taken by process ",
                          ::getpid(), " ("));
    EXPECT_HAS(error, "\n  note: choose another port");
  }
}

TEST_F(Launcher, AFreeFixedPortIsUsed) {
  options.master_port = reserve_port("127.0.0.1", 0).number;
  use_shell("echo $MASTER_PORT", 1);
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_EQ(log(0), str(options.master_port, "\n"));
}

TEST_F(Launcher, ABadAddressIsNamed) {
  use_shell("exit 0", 1);
  options.host = "localhost";
  EXPECT_HAS(error_of_launch(), "host \"localhost\": must be an IPv4 address");
  options.host = "192.0.2.1";
  EXPECT_HAS(error_of_launch(), "no interface of this machine has that address");
}

TEST_F(Launcher, AProgramThatCannotRunIsExplained) {
  write_file("train.py", "print(1)\n", 0644);
  options.program = {directory / "trian.py"};
  EXPECT_HAS(error_of_launch(), "no such file; did you mean \"train.py\"?");
  options.program = {directory / "train.py"};
  EXPECT_HAS(error_of_launch(),
             "it is not executable\n  note: run it with its interpreter: python3 ");
  options.program = {directory};
  EXPECT_HAS(error_of_launch(), "it is a directory");
  options.program = {"pyhton3"};
  EXPECT_HAS(error_of_launch(),
             "cannot run \"pyhton3\": no such program in PATH; did you mean \"python3\"?");
  options.program = {write_file("plain", "hello\n", 0755)};
  EXPECT_HAS(error_of_launch(), "neither a program nor a script with a #! line");
  options.program = {write_file("script", "#!/no/such/interpreter\n", 0755)};
  EXPECT_HAS(error_of_launch(), "its interpreter does not exist: #!/no/such/interpreter");
}

TEST_F(Launcher, OptionsOutOfRangeAreRefused) {
  options.nproc = 0;
  options.program = {"true"};
  EXPECT_HAS(error_of_launch(), "nproc 0: must be from 1 to");
  options.nproc = 1;
  options.grace_seconds = -1;
  EXPECT_HAS(error_of_launch(), "grace_seconds -1: must be above 0 and at most 1e+09");
  options.program.clear();
  EXPECT_HAS(error_of_launch(), "no program");
}

TEST_F(Launcher, AnUnwritableLogFolderIsNamed) {
  use_shell("exit 0", 1);
  options.log_dir = "/proc/no/such";
  EXPECT_HAS(error_of_launch(), "cannot write /proc/no/such/rank-0.log: ");
  options.log_dir = "";
}

}  // namespace
}  // namespace penstock::launch
