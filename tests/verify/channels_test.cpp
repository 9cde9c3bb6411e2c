// Lowered programs under each kind of channel, with and without blocking communication.
#include <gtest/gtest.h>

#include <map>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/verify/verify.h"
#include "tests/support/schedules.h"

namespace penstock::verify {
namespace {

using schedule::Schedule;
using testing_support::rows;

// "tagged dirfifo": the channels that verify accepts the schedule under, of those with queues.
std::string accepted(const Schedule& schedule,
                     Communication communication = Communication::Overlapped) {
  std::vector<std::string_view> names;
  for (const Channels channels : kChannels) {
    const Options options{.channels = channels, .communication = communication};
    if (verify(schedule, options).diagnostics.empty()) names.push_back(to_string(channels));
  }
  return join(names, " ");
}

std::string objections(const Schedule& schedule, const Options& options) {
  std::vector<std::string> texts;
  for (const Diagnostic& diagnostic : verify(schedule, options).diagnostics) {
    texts.push_back(to_string(diagnostic));
  }
  return join(texts, "\n");
}

TEST(Channels, OneOrderOnBothEndsSuitsAll) {
  EXPECT_EQ(accepted(rows({"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                           "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1"})),
            "tagged dirfifo pairfifo rankfifo");
}

TEST(Channels, WithoutMessagesTheyMakeNoDifference) {
  EXPECT_EQ(accepted(rows({"0F0,0F1,0B1,0B0", "1F1,1F0,1B1,1B0"})),
            "tagged dirfifo pairfifo rankfifo");
}

TEST(Channels, SwappedReceivesNeedNames) {
  EXPECT_EQ(accepted(rows({"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                           "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"})),
            "tagged");
}

TEST(Channels, ReceivesBetweenSendsMayDifferWhereEachDirectionHasItsQueue) {
  // Rank 0 posts the RECV of a gradient ahead of a SEND that rank 1 needs before it makes it.
  EXPECT_EQ(accepted(rows({"0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1",
                           "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1"})),
            "tagged dirfifo");
}

TEST(Channels, OneQueuePerRankAlsoOrdersItsPeers) {
  // Rank 1 posts what it receives from rank 2 ahead of its SEND of another microbatch to rank 0,
  // which rank 2 must not be kept waiting for.
  EXPECT_EQ(accepted(rows({"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                           "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1RECV_F1,1F1,1SEND_F1,1B0,1SEND_B0,"
                           "1RECV_B1,1B1,1SEND_B1",
                           "2RECV_F0,2F0,2RECV_F1,2F1,2B0,2SEND_B0,2B1,2SEND_B1"})),
            "tagged dirfifo");
  EXPECT_EQ(accepted(rows({"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                           "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1RECV_F1,1F1,1B0,1SEND_B0,1SEND_F1,"
                           "1RECV_B1,1B1,1SEND_B1",
                           "2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1"})),
            "tagged dirfifo pairfifo rankfifo");
}

TEST(Channels, HeadsThatAreNotOneMessageBlockBothRanks) {
  // Neither rank computes anything in between: the cycle is of messages alone.
  const Schedule crossed = rows({"0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1",
                                 "1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1"});
  EXPECT_EQ(objections(crossed, {.channels = Channels::PairFifo}),
            "rank 1 step 1: 1RECV_F0 waits for itself: deadlock [S030]\n"
            "  note: rank 1: 1RECV_F1 [1RECV_F0] 1F0 1F1 1B0 1SEND_B0 ...\n"
            "  note: rank 1 step 1: 1RECV_F0 stands in the queue behind 1RECV_F1 of step 0\n"
            "  note: rank 0 step 3: 0SEND_F1 stands in the queue behind 0SEND_F0 of step 2\n"
            "  note: pairfifo channels need one order of messages on both ranks; change one, or "
            "use tagged channels");
}

TEST(Channels, MisorderNamesBothMessages) {
  const Schedule swapped = rows({"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                                 "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"});
  EXPECT_EQ(objections(swapped, {.channels = Channels::DirFifo}),
            "rank 1 step 0: 1RECV_F1 would receive what 0SEND_F0 sends [S031]\n"
            "  note: rank 1: [1RECV_F1] 1RECV_F0 1F0 1B0 1SEND_B0 ...\n"
            "  note: message 0 from rank 0 to rank 1: 0SEND_F0 at rank 0 step 1 sends it, 1RECV_F1 "
            "at rank 1 step 0 receives it\n"
            "  note: its own RECV, 1RECV_F0, is at rank 1 step 1; 0SEND_F1 is at rank 0 step 3; "
            "receive in the order of the SENDs, or use tagged channels");
}

TEST(Channels, MisorderIsSaidOncePerDirection) {
  const Schedule swapped = rows({"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0RECV_B0,0B0,0B1",
                                 "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"});
  const auto diagnostics = verify(swapped, {.channels = Channels::DirFifo}).diagnostics;
  ASSERT_EQ(diagnostics.size(), 2u);
  EXPECT_EQ(diagnostics[0].message, "0RECV_B1 would receive what 1SEND_B0 sends");
  EXPECT_EQ(diagnostics[1].message, "1RECV_F1 would receive what 0SEND_F0 sends");
  for (const Diagnostic& each : diagnostics) EXPECT_EQ(kind(each.code), "misorder");
}

TEST(Channels, BlockingSendsMustMeetTheirReceives) {
  const Schedule head_on = rows({"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                                 "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"});
  EXPECT_EQ(accepted(head_on), "tagged dirfifo");
  EXPECT_EQ(accepted(head_on, Communication::Blocking), "");
  EXPECT_EQ(objections(head_on, {.communication = Communication::Blocking}),
            "rank 0 step 3: 0SEND_F1 waits for itself: deadlock [S030]\n"
            "  note: rank 0: 0F0 0SEND_F0 0F1 [0SEND_F1] 0RECV_B0 0B0 0RECV_B1 0B1\n"
            "  note: rank 0 step 3: 0SEND_F1 waits for 1RECV_F1 of rank 1\n"
            "  note: rank 1 step 3: 1SEND_B0 waits for 0RECV_B0 of rank 0\n"
            "  note: on one of these ranks, move what is waited for ahead of what waits");
  EXPECT_EQ(accepted(rows({"0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1",
                           "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"}),
                     Communication::Blocking),
            "tagged dirfifo pairfifo rankfifo");
}

TEST(Channels, OfALongCycleTheMiddleIsLeftOut) {
  // Two stages per rank, in a ring; rank 0 wants its second stage's input before it has run its
  // first.
  std::vector<std::string> programs = {"40F0,0F0,40B0,0B0"};
  for (int r = 1; r < 40; ++r) {
    programs.push_back(str(r, "F0,", r + 40, "F0,", r + 40, "B0,", r, "B0"));
  }
  const auto diagnostics = verify(rows(programs)).diagnostics;
  ASSERT_EQ(diagnostics.size(), 1u);
  EXPECT_EQ(diagnostics[0].code, Code::Deadlock);
  ASSERT_EQ(diagnostics[0].notes.size(), 1 + 32 + 1 + 1u);
  EXPECT_EQ(diagnostics[0].notes[17], "... and 8 more waits ...");
}

TEST(Memory, LimitIsOnTheSumOfSizes) {
  const Schedule order = rows({"0F0,1F0,0F1,1B0,0B0,1F1,1B1,0B1"});
  const PerStage sizes = std::vector<double>{1, 8};
  const auto text = [&](double limit) {
    return objections(order, {.memory_max = limit, .activation = sizes});
  };
  EXPECT_EQ(text(10), "");
  EXPECT_EQ(text(9.5),
            "rank 0 step 2: holds 10 of activations, 9.5 allowed [S051]\n"
            "  note: rank 0: 0F0 1F0 [0F1] 1B0 0B0 1F1 1B1 ...\n"
            "  note: run backwards earlier, or allow more");
}

TEST(Memory, ASplitBackwardFreesItsShareAtTheEndOfI) {
  const Schedule order = rows({"0F0,0I0,0F1,0I1,0W0,0W1"});
  const auto peak_fits = [&](double keep, double limit) {
    return verify(order, {.memory_max = limit, .activation = 4.0, .keep = keep})
        .diagnostics.empty();
  };
  EXPECT_TRUE(peak_fits(0.25, 5));
  EXPECT_FALSE(peak_fits(0.25, 4.75));
  EXPECT_FALSE(peak_fits(1, 7.75));
}

TEST(Memory, SizesMayDifferByMicrobatch) {
  const Schedule order = rows({"0F0,0F1,0B0,0B1"});
  const PerStage sizes = std::vector<std::vector<double>>{{1, 5}};
  EXPECT_TRUE(verify(order, {.memory_max = 6, .activation = sizes}).diagnostics.empty());
  EXPECT_FALSE(verify(order, {.memory_max = 5, .activation = sizes}).diagnostics.empty());
}

TEST(Memory, NumbersThatDoNotFitTheScheduleAreRefused) {
  const auto refusal = [](const Options& options) -> std::string {
    try {
      verify(rows({"0F0,0B0", "1F0,1B0"}), options);
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(refusal({.activation = std::vector<double>{1, 2, 3}}),
            "activation: 3 stages, the schedule has 2; give 1 number or 2");
  EXPECT_EQ(refusal({.activation = std::vector<std::vector<double>>{{1}, {1, 2}}}),
            "activation stage 1: 2 microbatches, the schedule has 1; give 1 number or 1");
  EXPECT_EQ(refusal({.activation = std::vector<double>{1, -2}, .keep = -0.5}),
            "activation stage 1: -2; expected 0, or a number from 1e-30 to 1e30\n"
            "keep: -0.5; expected a share from 0 to 1");
}

TEST(VerifiedSchedule, RemembersTheRulesAndRefusesWithAllDiagnostics) {
  const Schedule order = rows({"0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"});
  EXPECT_EQ(VerifiedSchedule::from(order, {.channels = Channels::RankFifo}).options().channels,
            Channels::RankFifo);
  try {
    VerifiedSchedule::from(rows({"0F0,0F0", "1F0,1B0"}));
    FAIL() << "accepted";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.diagnostics().size(), 2u);
    EXPECT_EQ(refusal.exit_code(), ExitCode::Usage);
  }
}

}  // namespace
}  // namespace penstock::verify
