#include "penstock/launch/hosts/environment_file.h"

#include <gtest/gtest.h>

#include "tests/support/message_of.h"

namespace penstock::hosts {
namespace {

using testing_support::message_of;

TEST(EnvironmentFile, HasAVariableInEachLine) {
  const Variables expected = {{"A", "1"}, {"B_2", "x = y"}, {"C", ""}};
  EXPECT_EQ(parse_environment_file("A=1\n# B=2\n\n  B_2=x = y \r\nC=", "env"), expected);
}

TEST(EnvironmentFile, SaysAllThatIsWrongWithTheLine) {
  EXPECT_EQ(message_of([] { parse_environment_file("A\nB=1\n1C=2\n", "env"); }),
            "env:1: \"A\" is no variable; expected NAME=VALUE\n"
            "  note: env:3: \"1C=2\" is no variable; expected NAME=VALUE");
}

TEST(EnvironmentFile, ProgramsAndTalkGoAlongAndALaunchDoesNot) {
  const Variables expected = {{"PATH", "/bin"}, {"PYTHONPATH", "p"}, {"NCCL_DEBUG", "INFO"}};
  EXPECT_EQ(exported({"PATH=/bin", "PYTHONPATH=p", "HOME=/root", "NCCL_DEBUG=INFO", "RANK=3",
                      "PENSTOCK_CONTROL_FD=5"}),
            expected);
}

}  // namespace
}  // namespace penstock::hosts
