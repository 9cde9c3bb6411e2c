#include "penstock/launch/hosts/hostfile.h"

#include <gtest/gtest.h>

#include "tests/support/message_of.h"

namespace penstock::hosts {
namespace {

using testing_support::message_of;

std::string refusal(const std::string& text) {
  return message_of([&] { parse_hostfile(text, "hosts"); });
}

TEST(Hostfile, HasHostsInItsOrder) {
  const auto hosts = parse_hostfile(
      "# the cluster\n\nworker-2 slots=4\n  worker-1\tslots=2 max_slots=8  # old\nme@10.0.0.3 "
      "slots=1",
      "hosts");
  EXPECT_EQ(hosts, (std::vector<Host>{{"worker-2", 4}, {"worker-1", 2}, {"me@10.0.0.3", 1}}));
}

TEST(Hostfile, SaysAllThatIsWrongWithTheLine) {
  EXPECT_EQ(refusal("a slots=1\nb\nc slots=x\na slots=2\nd slots=0\ne slot=2\nf slots=1 slots=2\n"),
            "hosts:2: host \"b\" has no slots; expected NAME slots=N\n"
            "  note: hosts:3: slots=x: must be an integer from 1 to 4096\n"
            "  note: hosts:4: host \"a\" is in line 1 already\n"
            "  note: hosts:5: slots=0: must be an integer from 1 to 4096\n"
            "  note: hosts:6: unexpected word \"slot=2\"; expected NAME slots=N\n"
            "  note: hosts:7: unexpected word \"slots=2\"; expected NAME slots=N");
  EXPECT_EQ(refusal("# nobody\n"), "hosts: no hosts; expected NAME slots=N in each line");
}

TEST(Hostfile, HasNoNamesThatAShellOrSshMisreads) {
  for (const std::string name : {"-oProxyCommand=x", "a;b", "$(a)", "a'b", "`a`", "a/b"}) {
    EXPECT_FALSE(is_host_name(name)) << name;
    EXPECT_EQ(refusal(name + " slots=1"),
              "hosts:1: \"" + name + "\" is no name of a host; expected NAME slots=N");
  }
}

}  // namespace
}  // namespace penstock::hosts
