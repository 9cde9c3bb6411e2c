#include "penstock/launch/hosts/selection.h"

#include <gtest/gtest.h>

#include "tests/support/message_of.h"

namespace penstock::hosts {
namespace {

using testing_support::message_of;

const std::vector<Host> kHosts = {{"worker-1", 2}, {"worker-2", 4}, {"worker-3", 1}};

// "worker-1:0,1 worker-2:0": what is chosen.
std::string chosen(const Selection& selection) {
  std::string text;
  for (const ChosenHost& host : choose_hosts(kHosts, selection)) {
    text += (text.empty() ? "" : " ") + host.name;
    for (const int slot : host.slot_numbers) {
      text += (slot == host.slot_numbers.front() ? ":" : ",") + std::to_string(slot);
    }
  }
  return text;
}

std::string refusal(const Selection& selection) {
  return message_of([&] { choose_hosts(kHosts, selection); });
}

TEST(HostSelection, IsAllHostsUnlessSomethingIsSaid) {
  EXPECT_EQ(chosen({}), "worker-1:0,1 worker-2:0,1,2,3 worker-3:0");
  EXPECT_EQ(count_ranks(choose_hosts(kHosts, {})), 7);
}

TEST(HostSelection, FollowsTheHostfileAndNotTheOption) {
  EXPECT_EQ(chosen({.include = "worker-2:2,0@worker-1"}), "worker-1:0,1 worker-2:0,2");
  EXPECT_EQ(chosen({.include = "worker-2:1@worker-2:3,1"}), "worker-2:1,3");
  EXPECT_EQ(chosen({.exclude = "worker-1@worker-2:0,3"}), "worker-2:1,2 worker-3:0");
  EXPECT_EQ(chosen({.num_nodes = 2, .num_gpus = 1}), "worker-1:0 worker-2:0");
}

TEST(HostSelection, NamesWhatIsNone) {
  EXPECT_EQ(refusal({.include = "worker-4"}),
            "--include: host \"worker-4\" is not in the hostfile; did you mean \"worker-1\"?\n"
            "  note: its hosts are worker-1, worker-2, worker-3");
  EXPECT_EQ(refusal({.exclude = "worker-2:1,4"}),
            "--exclude: \"4\" is no slot of host worker-2, which has slots 0 to 3");
  EXPECT_EQ(refusal({.include = "worker-3:x"}),
            "--include: \"x\" is no slot of host worker-3, which has slot 0");
  EXPECT_EQ(refusal({.num_nodes = 4}), "--num_nodes 4: there are 3 hosts");
  EXPECT_EQ(refusal({.num_gpus = 2}), "--num_gpus 2: host worker-3 has 1 slot");
}

TEST(HostSelection, LeavesSomething) {
  EXPECT_EQ(refusal({.exclude = "worker-1@worker-2@worker-3:0"}),
            "--exclude leaves no slot of any host");
}

TEST(HostSelection, HasOptionsThatExcludeEachOther) {
  EXPECT_EQ(refusal({.include = "worker-1", .exclude = "worker-2"}),
            "--include and --exclude exclude each other\n"
            "  note: --include names all that is taken, --exclude all that is not");
  EXPECT_EQ(refusal({.include = "worker-1", .num_nodes = 1}),
            "--num_nodes with --include: one of them says which slots are taken");
  EXPECT_EQ(refusal({.exclude = "worker-1", .num_gpus = 1}),
            "--num_gpus with --exclude: one of them says which slots are taken");
}

}  // namespace
}  // namespace penstock::hosts
