#include "penstock/launch/inject/fault.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"

namespace penstock::inject {
namespace {

// The words of an error, or what was read after all.
std::string refusal(const std::string& text) {
  try {
    return "read: " + to_string(parse_fault(text));
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Fault, IsReadFromItsText) {
  EXPECT_EQ(parse_fault("kill:rank=1,step=7,at=SEND_B"),
            (Fault{.kind = Fault::Kind::Kill, .rank = Rank(1), .step = 7, .at = "SEND_B"}));
  EXPECT_EQ(parse_fault("delay:seconds=0.5,rank=0,start=3"),
            (Fault{.kind = Fault::Kind::Delay, .rank = Rank(0), .start = 3, .seconds = 0.5}));
}

TEST(Fault, PrintsAsItIsRead) {
  for (const std::string text :
       {"kill:rank=1,step=7,at=SEND_B", "stop:rank=0,at=save,after=0.25", "enospc:rank=3,step=2",
        "exception:rank=0,at=1SEND_B3", "delay:rank=0,start=2,seconds=1.5",
        "slow:rank=2,step=30,at=F,seconds=0.004,until=40", "slow:rank=0,at=1B3,seconds=0"}) {
    EXPECT_EQ(to_string(parse_fault(text)), text);
  }
}

TEST(Fault, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal("kil:rank=1"),
            "--inject \"kil:rank=1\": there is no fault \"kil\"; did you mean \"kill\"?\n"
            "  note: faults: kill, stop, delay, slow, exception, enospc");
  EXPECT_EQ(refusal("kill:rank=1,stepp=2"),
            "--inject \"kill:rank=1,stepp=2\": kill has no key \"stepp\"; did you mean \"step\"?\n"
            "  note: keys: rank, step, at, start, after");
  EXPECT_EQ(refusal("kill"), "--inject \"kill\": it names no rank\n  note: for example rank=0");
  EXPECT_EQ(refusal("delay:rank=0"),
            "--inject \"delay:rank=0\": a delay has no length\n  note: for example seconds=2");
  EXPECT_EQ(refusal("kill:rank=-1"),
            "--inject \"kill:rank=-1\": rank is \"-1\", must be an integer from 0 to 1000000000");
  EXPECT_EQ(refusal("kill:rank=0,rank=1"), "--inject \"kill:rank=0,rank=1\": rank is given twice");
  EXPECT_EQ(refusal("kill:rank=0,step"), "--inject \"kill:rank=0,step\": step has no value");
  EXPECT_EQ(refusal("kill:rank=0,step=1,at=data"),
            "--inject \"kill:rank=0,step=1,at=data\": at=data is in no step, so step=1 never comes"
            "\n  note: leave step out");
  EXPECT_EQ(refusal("slow:rank=0,at=F"),
            "--inject \"slow:rank=0,at=F\": how slow is not said\n  note: for example seconds=2");
  EXPECT_TRUE(refusal("slow:rank=0,at=save,seconds=1")
                  .starts_with("--inject \"slow:rank=0,at=save,seconds=1\": at=save is no action, "
                               "and slow is said of actions\n  note: ops of a schedule: F, B"));
  EXPECT_EQ(refusal("slow:rank=0,at=F,seconds=1,step=5,until=4"),
            "--inject \"slow:rank=0,at=F,seconds=1,step=5,until=4\": until=4 is before step=5");
  EXPECT_EQ(refusal("delay:rank=0,seconds=1,until=4"),
            "--inject \"delay:rank=0,seconds=1,until=4\": delay has no key \"until\"\n"
            "  note: keys: rank, step, at, start, seconds");
  const std::string misspelt = refusal("stop:rank=0,at=SEND_C");
  EXPECT_TRUE(
      misspelt.starts_with("--inject \"stop:rank=0,at=SEND_C\": there is no place "
                           "\"SEND_C\"; did you mean \"SEND_"))
      << misspelt;
}

TEST(Fault, RefusesRanksThatAreNotThere) {
  const std::vector<Fault> faults = {parse_fault("kill:rank=4")};
  EXPECT_NO_THROW(check_ranks(faults, 5));
  EXPECT_THROW(check_ranks(faults, 4), ConfigError);
}

TEST(Fault, IsSlowFromItsStepToItsLast) {
  const Fault fault = parse_fault("slow:rank=0,at=F,seconds=1,step=5,until=7");
  EXPECT_FALSE(is_slow_in(fault, 4));
  EXPECT_TRUE(is_slow_in(fault, 5));
  EXPECT_TRUE(is_slow_in(fault, 7));
  EXPECT_FALSE(is_slow_in(fault, 8));
  EXPECT_TRUE(is_slow_in(parse_fault("slow:rank=0,at=F,seconds=1"), 1));
}

TEST(Fault, MeansOpsAndActionsAndPlaces) {
  const Fault by_op = parse_fault("kill:rank=0,at=SEND_B");
  EXPECT_TRUE(is_at(by_op, "1SEND_B3"));
  EXPECT_FALSE(is_at(by_op, "1SEND_F3"));
  EXPECT_FALSE(is_at(by_op, "saving a checkpoint"));
  EXPECT_TRUE(is_at(parse_fault("kill:rank=0,at=REDUCE_GRAD"), "2REDUCE_GRAD"));
  EXPECT_FALSE(is_at(parse_fault("kill:rank=0,at=B"), "1SEND_B3"));
  const Fault by_action = parse_fault("kill:rank=0,at=1SEND_B3");
  EXPECT_TRUE(is_at(by_action, "1SEND_B3"));
  EXPECT_FALSE(is_at(by_action, "1SEND_B4"));
  EXPECT_TRUE(is_at(parse_fault("kill:rank=0,at=save"), "saving a checkpoint"));
  EXPECT_FALSE(is_at(parse_fault("kill:rank=0,at=weights"), "saving a checkpoint"));
}

}  // namespace
}  // namespace penstock::inject
