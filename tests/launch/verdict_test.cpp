#include "penstock/launch/verdict.h"

#include <gtest/gtest.h>

#include <csignal>
#include <map>

#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

// Four ranks at step 12 that were heard a moment ago; the tests then let things happen to them.
class Verdicts : public testing::Test {
 protected:
  Verdicts() {
    seen.limits = {.heartbeat_ms = 3000, .startup_ms = 60'000};
    seen.process_state = [this](std::int64_t pid) {
      return states.contains(pid) ? states[pid] : 'S';
    };
    for (int rank = 0; rank < 4; ++rank) {
      RankRecord record;
      record.pid = 1000 + rank;
      enter_message(record, Hello{}, 0);
      seen.ranks.push_back(record);
      works(rank, 10'000);
    }
    seen.now_ms = 10'000;
  }

  RankRecord& rank(int r) { return seen.ranks[static_cast<std::size_t>(r)]; }

  void reports(int r, std::int64_t ms, ProgressReport report) {
    report.counter = counter_;
    enter_message(rank(r), report, ms);
  }
  void works(int r, std::int64_t ms) {
    ++counter_;
    reports(r, ms, {.step = 12, .phase = "training", .doing = str(r, "F3")});
  }
  void waits(int r, std::int64_t ms, std::optional<Rank> peer, std::int64_t waiting_ms = 0) {
    reports(r, ms,
            {.step = 12,
             .phase = "training",
             .doing = str(r, "RECV_B3"),
             .waiting = true,
             .waiting_for = peer,
             .waiting_ms = waiting_ms});
  }
  void fails(int r, std::int64_t ms, ExitCode code, const std::string& message) {
    enter_message(
        rank(r),
        ErrorReport{.step = 12, .instruction = "1B3", .message = message, .exit_code = code}, ms);
  }
  void dies(int r, std::int64_t ms, int signal) {
    rank(r).ending = Ending{Ending::Kind::Signalled, signal};
    rank(r).ending_ms = ms;
  }
  void exits(int r, std::int64_t ms, int code) {
    rank(r).ending = Ending{Ending::Kind::Exited, code};
    rank(r).ending_ms = ms;
  }
  std::string failure() const {
    const auto verdict = find_failure(seen);
    return verdict ? str(verdict->root_cause, " [", verdict->exit_code, "]") : "none";
  }
  std::string hang() const {
    const auto verdict = find_hang(seen);
    return verdict ? str(verdict->root_cause, " [", verdict->exit_code, "]") : "none";
  }
  std::string notes(const std::optional<Verdict>& verdict) const {
    return verdict ? join(verdict->notes, "\n") : "none";
  }

  Observation seen;
  std::map<std::int64_t, char> states;

 private:
  std::uint64_t counter_ = 0;
};

using Failures = Verdicts;
using Hangs = Verdicts;

TEST_F(Failures, NoneWhileAllIsWell) {
  EXPECT_EQ(failure(), "none");
  exits(0, 10'000, 0);
  EXPECT_EQ(failure(), "none");
  EXPECT_EQ(first_failure_ms(seen), std::nullopt);
}

TEST_F(Failures, ADeathByASignalIsNamedWithItsLastPosition) {
  dies(2, 10'100, SIGKILL);
  EXPECT_EQ(failure(), "rank 2 was killed by SIGKILL; last seen at step 12, instruction 2F3 [4]");
  EXPECT_EQ(first_failure_ms(seen), 10'100);
}

TEST_F(Failures, LostPeersFollowADeathWhoeverIsHeardFirst) {
  fails(0, 10'050, ExitCode::PeerLost, "lost rank 2 in 0RECV_B3");
  exits(3, 10'060, 4);
  dies(2, 10'100, SIGSEGV);
  EXPECT_EQ(failure(), "rank 2 was killed by SIGSEGV; last seen at step 12, instruction 2F3 [4]");
  EXPECT_EQ(notes(find_failure(seen)), "rank 0 then reported: lost rank 2 in 0RECV_B3");
}

TEST_F(Failures, AnErrorThatOthersHeardOfIsNotToldAgain) {
  fails(2, 100, ExitCode::Usage, "no text\n  note: give some");
  fails(0, 101, ExitCode::Usage, "rank 2 failed: no text\n  note: give some");
  EXPECT_EQ(failure(), "rank 2 failed at step 12, instruction 1B3: no text [2]");
  EXPECT_EQ(notes(find_failure(seen)), "give some\n1 other rank reported the same");
}

TEST_F(Failures, AnErrorThatBeginsWithItsRankIsNotToldAgain) {
  fails(2, 100, ExitCode::Usage, "rank 2, 1f1b, instruction 4 (1B3): no text");
  fails(0, 101, ExitCode::Usage,
        "rank 0, 1f1b, instruction 7: rank 2 failed: 1f1b, "
        "instruction 4 (1B3): no text");
  EXPECT_EQ(notes(find_failure(seen)), "1 other rank reported the same");
}

// Two ranks find the same, and the third hears of it from the one that is not told.
TEST_F(Failures, AnErrorThatOthersHeardOfFromAnyRankIsNotToldAgain) {
  fails(0, 100, ExitCode::Usage, "no text\n  note: give some");
  fails(3, 101, ExitCode::Usage, "no text\n  note: give some");
  fails(1, 102, ExitCode::PeerLost, "rank 3 failed: no text\n  note: give some");
  EXPECT_EQ(failure(), "rank 0 failed at step 12, instruction 1B3: no text [2]");
  EXPECT_EQ(notes(find_failure(seen)), "give some\n2 other ranks reported the same");
}

TEST_F(Failures, AnErrorReportBeatsTheDeathsThatFollowIt) {
  fails(1, 10'000, ExitCode::Numerics, "loss is nan\n  note: stage 1, microbatch 3\nsecond line");
  exits(1, 10'010, 6);
  dies(0, 10'020, SIGABRT);
  dies(3, 10'030, SIGSEGV);
  EXPECT_EQ(failure(), "rank 1 failed at step 12, instruction 1B3: loss is nan\n  second line [6]");
  EXPECT_EQ(find_failure(seen)->notes[0], "stage 1, microbatch 3");
}

TEST_F(Failures, AReportWithoutACauseIsWeakerThanADeath) {
  fails(0, 10'000, ExitCode::Failure, "Connection reset by peer");
  dies(2, 10'005, SIGKILL);
  EXPECT_EQ(find_failure(seen)->rank, Rank(2));
}

TEST_F(Failures, TheFirstOfEquals) {
  fails(3, 10'000, ExitCode::Usage, "a");
  fails(0, 10'001, ExitCode::Checkpoint, "b");
  EXPECT_EQ(find_failure(seen)->rank, Rank(3));
}

TEST_F(Failures, OnlyLostPeersNameTheFirst) {
  fails(3, 10'001, ExitCode::PeerLost, "no route to rank 1");
  fails(0, 10'000, ExitCode::PeerLost, "lost rank 1");
  EXPECT_EQ(failure(), "rank 0 failed at step 12, instruction 1B3: lost rank 1 [4]");
}

TEST_F(Failures, ATimeoutIsTheStoppedRanks) {
  fails(0, 12'000, ExitCode::Hang, "no 1SEND_B3 from rank 1 within 2 s");
  states[1001] = 'T';
  seen.now_ms = 12'300;
  EXPECT_EQ(failure(),
            "rank 1 stopped answering for 2.3 s (process 1001 is stopped by SIGSTOP; "
            "last seen at step 12, instruction 1F3) [5]");
}

TEST_F(Failures, AnExitWithoutAReport) {
  exits(1, 10'100, 3);
  EXPECT_EQ(failure(),
            "rank 1 exited 3 without a report; last seen at step 12, instruction 1F3 [3]");
}

TEST_F(Failures, AForeignProgramsCodeIsTheRunsCode) {
  for (RankRecord& record : seen.ranks) record = RankRecord{.pid = record.pid};
  exits(1, 10'100, 4);
  exits(2, 10'200, 1);
  EXPECT_EQ(failure(), "rank 1 exited 4 [4]");
}

TEST_F(Failures, AnEarlyEndInGoodOrderIsNone) {
  exits(1, 10'100, 75);
  enter_message(rank(2), Bye{}, 10'100);
  exits(2, 10'100, 130);
  EXPECT_EQ(failure(), "none");
}

TEST_F(Failures, AfterAStopTheSignalItselfIsNone) {
  seen.stop_signal = SIGTERM;
  rank(0) = RankRecord{.pid = 1000};
  exits(0, 10'000, 1);  // A foreign program, interrupted.
  dies(1, 10'000, SIGTERM);
  EXPECT_EQ(failure(), "none");
  fails(2, 10'100, ExitCode::Checkpoint, "disk full");
  EXPECT_EQ(failure(), "rank 2 failed at step 12, instruction 1B3: disk full [3]");
}

// Programs of users' own, which a signal stops: their reports say why they end, and no more.
TEST_F(Failures, AProgramsReportCountsOnceItHasEndedByIt) {
  enter_message(rank(1), Hello{.takes_stop = false}, 10'000);
  fails(1, 10'100, ExitCode::Failure, "ValueError: no");
  EXPECT_EQ(failure(), "none");
  exits(1, 10'200, 42);
  EXPECT_EQ(failure(), "rank 1 failed at step 12, instruction 1B3: ValueError: no [42]");
}

TEST_F(Failures, AProgramsLostPeerIsNoCause) {
  for (int r : {0, 1}) enter_message(rank(r), Hello{.takes_stop = false}, 10'000);
  fails(0, 10'100, ExitCode::PeerLost, "rank 1 is gone");
  exits(0, 10'100, 1);
  exits(1, 10'200, 3);
  EXPECT_EQ(failure(),
            "rank 1 exited 3 without a report; last seen at step 12, instruction 1F3 [3]");
}

// An interpreter with much to tear down ends after its peers, who report its words as their own.
TEST_F(Failures, AProgramThatEndsAfterItsPeersIsTheCauseOnceItHasReported) {
  for (int r : {0, 1}) enter_message(rank(r), Hello{.takes_stop = false}, 10'000);
  fails(1, 10'050, ExitCode::Failure, "ValueError: no");
  EXPECT_EQ(failure(), "none");
  fails(0, 10'100, ExitCode::PeerLost, "rank 1 failed: ValueError: no");
  exits(0, 10'200, 1);
  EXPECT_EQ(failure(), "rank 1 failed at step 12, instruction 1B3: ValueError: no [1]");
}

TEST_F(Failures, AProgramsCodesAreItsOwn) {
  enter_message(rank(1), Hello{.takes_stop = false}, 10'000);
  exits(1, 10'100, 75);
  EXPECT_EQ(failure(),
            "rank 1 exited 75 without a report; last seen at step 12, instruction 1F3 [75]");
}

// A shell that runs a program goes on when that is killed.
TEST_F(Failures, AProgramThatEndedWithoutAWordIsTheCauseOfLostPeers) {
  for (int r : {0, 1}) enter_message(rank(r), Hello{.takes_stop = false}, 10'000);
  enter_message(rank(1), Gone{}, 10'050);
  exits(1, 10'060, 0);
  EXPECT_EQ(failure(), "none");  // It may have called _exit(0) at its end.
  fails(0, 10'100, ExitCode::PeerLost, "rank 1 is gone");
  enter_message(rank(0), Gone{}, 10'110);
  exits(0, 10'120, 0);
  EXPECT_EQ(failure(),
            "rank 1's program ended without a word; last seen at step 12, instruction 1F3 [4]");
}

TEST_F(Failures, AShellTellsWhatKilledItsProgram) {
  enter_message(rank(1), Hello{.takes_stop = false}, 10'000);
  enter_message(rank(1), Gone{}, 10'050);
  exits(1, 10'060, 128 + SIGKILL);
  EXPECT_EQ(failure(), "rank 1 was killed by SIGKILL; last seen at step 12, instruction 1F3 [4]");
}

TEST_F(Failures, AProgramThatIsStartedAgainIsNotGone) {
  enter_message(rank(1), Gone{}, 10'050);
  enter_message(rank(1), Hello{.takes_stop = false}, 10'100);
  fails(0, 10'100, ExitCode::PeerLost, "rank 1 is gone");
  EXPECT_EQ(failure(), "rank 0 failed at step 12, instruction 1B3: rank 1 is gone [4]");
}

// Ranks of a user's program hear of a stop one after the other.
TEST_F(Failures, WhoeverWaitsForARankThatWasStoppedHasLostNoPeer) {
  seen.is_own = false;
  seen.stop_signal = SIGINT;
  fails(0, 10'100, ExitCode::PeerLost, "rank 1 is gone");
  EXPECT_NE(failure(), "none");
  exits(1, 10'100, 130);
  EXPECT_EQ(failure(), "none");
  fails(2, 10'100, ExitCode::Checkpoint, "disk full");
  EXPECT_NE(failure(), "none");
}

// A program that a signal stops ends as it likes; one that is asked on its channel, in good order.
TEST_F(Failures, AfterAStopHowAProgramEndsThatTakesNone) {
  seen.stop_signal = SIGTERM;
  enter_message(rank(1), Hello{.takes_stop = false}, 10'000);
  EXPECT_FALSE(rank(1).stops_itself());
  fails(1, 10'100, ExitCode::PeerLost, "rank 0 is gone");
  exits(1, 10'100, 1);
  EXPECT_EQ(failure(), "none");
  EXPECT_TRUE(rank(2).stops_itself());
  exits(2, 10'200, 1);
  EXPECT_NE(failure(), "none");
}

TEST_F(Failures, NotesSayWhoWasWaiting) {
  waits(0, 10'000, Rank(2), 500);
  dies(2, 10'300, SIGKILL);
  seen.now_ms = 10'600;
  EXPECT_EQ(notes(find_failure(seen)), "rank 0: step 12, waiting for rank 2 in 0RECV_B3 (1.1 s)");
}

TEST_F(Failures, ATerminalIsNotDrivenByARank) {
  fails(1, 10'000, ExitCode::Usage, "\x1B[2J");
  EXPECT_EQ(find_failure(seen)->root_cause, "rank 1 failed at step 12, instruction 1B3: ?[2J");
}

TEST_F(Hangs, NoneWhileEveryoneAnswersAndSomeoneAdvances) {
  seen.now_ms = 12'999;
  EXPECT_EQ(hang(), "none");
  for (int r = 0; r < 3; ++r) waits(r, 13'500, Rank(3));
  works(3, 13'500);
  seen.now_ms = 16'400;
  EXPECT_EQ(hang(), "none");
}

TEST_F(Hangs, ASilentRankIsNamedWithItsProcessState) {
  for (int r : {0, 2, 3}) waits(r, 12'900, Rank(1), 2800);
  states[1001] = 'T';
  seen.now_ms = 13'000;
  EXPECT_EQ(hang(),
            "rank 1 stopped answering for 3.0 s (process 1001 is stopped by SIGSTOP; "
            "last seen at step 12, instruction 1F3) [5]");
  EXPECT_EQ(notes(find_hang(seen)),
            "rank 0: step 12, waiting for rank 1 in 0RECV_B3 (2.9 s)\n"
            "rank 2: step 12, waiting for rank 1 in 2RECV_B3 (2.9 s)\n"
            "rank 3: step 12, waiting for rank 1 in 3RECV_B3 (2.9 s)");
}

TEST_F(Hangs, OfSeveralSilentRanksTheStoppedOneIsTheCause) {
  states[1002] = 'T';
  seen.now_ms = 14'000;
  EXPECT_EQ(find_hang(seen)->rank, Rank(2));
}

TEST_F(Hangs, SilenceOfEndedDoneAndForeignRanksIsNoHang) {
  exits(0, 10'000, 0);
  enter_message(rank(1), Bye{}, 10'000);
  rank(2) = RankRecord{.pid = 1002};
  rank(3) = RankRecord{.pid = 1003};
  seen.now_ms = 1'000'000;
  EXPECT_EQ(hang(), "none");
}

TEST_F(Hangs, AStandstillNamesTheRankThatWaitsForNobody) {
  for (int r : {0, 2, 3}) waits(r, 13'000, Rank(1), 2500);
  reports(1, 13'000, rank(1).progress);
  for (int r = 0; r < 4; ++r) rank(r).advanced_ms = 10'000;
  seen.now_ms = 13'000;
  EXPECT_EQ(hang(),
            "no rank made progress for 3.0 s: rank 1 waits for nobody at step 12, instruction 1F3 "
            "[5]");
  EXPECT_EQ(find_hang(seen)->rank, Rank(1));
  EXPECT_NE(notes(find_hang(seen)).find("raise launch.heartbeat_seconds"), std::string::npos);
}

TEST_F(Hangs, AStandstillOfWaitersShowsTheRing) {
  for (int r = 0; r < 4; ++r) {
    waits(r, 13'000, Rank((r + 1) % 2), 2500);
    rank(r).advanced_ms = 10'000;
  }
  seen.now_ms = 13'000;
  EXPECT_EQ(hang(),
            "no rank made progress for 3.0 s: rank 0 waits for rank 1, which waits for rank 0 [5]");
}

TEST_F(Hangs, AWaitForARankThatHasEndedSaysSo) {
  exits(3, 10'000, 0);
  for (int r = 0; r < 3; ++r) {
    waits(r, 13'000, Rank(3));
    rank(r).advanced_ms = 10'000;
  }
  seen.now_ms = 13'000;
  EXPECT_EQ(hang(),
            "no rank made progress for 3.0 s: rank 0 waits for rank 3, which has ended (exited 0) "
            "[5]");
}

TEST_F(Hangs, StartUpHasItsOwnLimitAndNamesThePhases) {
  for (int r = 0; r < 4; ++r) {
    rank(r) = RankRecord{.pid = 1000 + r};
    enter_message(rank(r), Hello{}, 0);
    reports(r, 59'999, {.phase = r == 2 ? "loading weights" : "connecting", .waiting = r != 2});
    rank(r).advanced_ms = 0;
  }
  seen.now_ms = 59'999;
  EXPECT_EQ(hang(), "none");
  seen.now_ms = 60'000;
  EXPECT_EQ(hang(),
            "no rank made progress for 60.0 s before the first step: rank 2 waits for nobody at "
            "loading weights [5]");
  EXPECT_NE(notes(find_hang(seen)).find("rank 0: connecting, waiting (0.0 s)"), std::string::npos);
}

TEST_F(Hangs, ARankThatUsesFilesHasTheDisksLimitAndSoHaveThoseThatWaitForIt) {
  seen.limits.disk_ms = 100'000;
  for (int r = 1; r < 4; ++r) waits(r, 10'000, Rank(0));
  reports(0, 10'000, {.step = 12, .phase = "updating parameters", .uses_files = true});
  const auto all_are_heard = [&] {
    for (RankRecord& record : seen.ranks) record.heard_ms = seen.now_ms;
  };
  seen.now_ms = 109'999;
  all_are_heard();
  EXPECT_EQ(hang(), "none");
  seen.now_ms = 110'000;
  all_are_heard();
  EXPECT_EQ(hang(),
            "no rank made progress for 100.0 s: rank 0 waits for nobody at step 12, updating "
            "parameters [5]");
  EXPECT_NE(notes(find_hang(seen)).find("raise launch.disk_seconds"), std::string::npos);
}

TEST_F(Hangs, SavingIsHeldToTheDisksLimitNotToThatOfTheStart) {
  for (int r = 0; r < 4; ++r) reports(r, 10'000, {.phase = r == 0 ? "saving" : "leaving"});
  rank(0).progress.uses_files = true;
  seen.now_ms = 400'000;
  for (RankRecord& record : seen.ranks) record.heard_ms = seen.now_ms;
  EXPECT_EQ(hang(), "none");
}

TEST_F(Hangs, ARankOfAnotherLauncherHasNoProcessToLookAt) {
  rank(1).pid = 0;
  for (int r : {0, 2, 3}) waits(r, 12'900, Rank(1), 2800);
  seen.now_ms = 13'000;
  EXPECT_EQ(hang(),
            "rank 1 stopped answering for 3.0 s (what its process does is not known; last seen at "
            "step 12, instruction 1F3) [5]");
}

TEST_F(Hangs, ARankThatNeverReportedHoldsTheOthersUp) {
  for (int r = 0; r < 4; ++r) {
    waits(r, 70'000, std::nullopt);
    rank(r).advanced_ms = 10'000;
  }
  rank(3) = RankRecord{.pid = 1003};
  seen.now_ms = 70'000;
  EXPECT_EQ(hang(),
            "no rank made progress for 60.0 s outside a step: rank 3 (process 1003) has not "
            "reported yet [5]");
}

TEST_F(Hangs, ADoneRankNeedNotAdvanceButMustAnswer) {
  for (int r = 0; r < 4; ++r) enter_message(rank(r), Done{}, 10'000);
  for (int r = 0; r < 4; ++r) rank(r).heard_ms = 49'000;
  seen.now_ms = 50'000;
  EXPECT_EQ(hang(), "none");
  rank(1).heard_ms = 47'000;
  EXPECT_EQ(hang(),
            "rank 1 stopped answering for 3.0 s (process 1001 sleeps; last seen at the end of its "
            "work) [5]");
}

TEST_F(Hangs, RanksThatHaveFinishedMustEndOneDay) {
  for (int r = 0; r < 4; ++r) enter_message(rank(r), Done{}, 10'000);
  exits(0, 10'000, 0);
  enter_message(rank(2), Bye{}, 10'000);
  enter_message(rank(3), Bye{}, 10'000);
  rank(1).heard_ms = 70'000;
  seen.now_ms = 70'000;
  EXPECT_EQ(hang(),
            "no rank made progress for 60.0 s outside a step: rank 1 has finished its work and "
            "does not end [5]");
}

TEST_F(Hangs, WhereEveryRankMustReportSilenceFromTheStartIsAHang) {
  for (int r = 0; r < 4; ++r) rank(r) = RankRecord{.pid = 1000 + r};
  seen.now_ms = 60'000;
  EXPECT_EQ(hang(), "none");
  seen.must_report = true;
  EXPECT_NE(
      hang().find("before the first step: rank 0 (process 1000) has not reported yet; rank 1"),
      std::string::npos);
}

TEST(Endings, AreCountedByKind) {
  std::vector<RankRecord> ranks(4);
  ranks[0].ending = Ending{Ending::Kind::Signalled, SIGTERM};
  ranks[1].ending = Ending{Ending::Kind::Exited, 4};
  ranks[2].ending = Ending{Ending::Kind::Signalled, SIGKILL};
  ranks[3].ending = Ending{Ending::Kind::Signalled, SIGTERM};
  EXPECT_EQ(describe_other_endings(ranks, Rank(2)),
            "3 other ranks were ended (2 by SIGTERM, 1 exited 4)");
  EXPECT_EQ(describe_other_endings({ranks[1]}, std::nullopt), "1 rank was ended (1 exited 4)");
  EXPECT_EQ(describe_other_endings({ranks[1]}, Rank(0)), "");
}

TEST(OomKills, AreReadFromEitherCgroupVersionAndTheMachine) {
  EXPECT_EQ(parse_oom_kills("low 0\nhigh 0\noom 3\noom_kill 2\noom_group_kill 0\n"), 2);
  EXPECT_EQ(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), 1);
  EXPECT_EQ(parse_oom_kills(""), std::nullopt);
}

}  // namespace
}  // namespace penstock::launch
