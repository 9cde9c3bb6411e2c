// Lowered programs against what torch.distributed.pipelining makes or issues.
#include <gtest/gtest.h>

#include <map>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/torch.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/golden.h"

namespace penstock::schedule {
namespace {

using testing_support::golden_lines;

// "ScheduleLoopedBFS 2 4 8": schedule, ranks, stages per rank, microbatches.
Schedule make(const std::vector<std::string>& words) {
  return make_schedule(words.at(0), {.ranks = std::stoi(words.at(1)),
                                     .stages_per_rank = std::stoi(words.at(2)),
                                     .microbatches = std::stoi(words.at(3))});
}

TEST(TorchLowering, SmallProgramsAreEqualActionForAction) {
  const auto lines = golden_lines("torch_lowered.txt");
  int compared = 0;
  for (std::size_t i = 0; i < lines.size(); ++compared) {
    SCOPED_TRACE(lines[i]);
    const auto words = split(lines[i++], ' ');
    std::string text;
    for (int rank = 0; rank < std::stoi(words.at(1)); ++rank) text += lines.at(i++) + "\n";
    EXPECT_EQ(to_csv(lower_as_torch(make(words))), text);
  }
  EXPECT_EQ(compared, 25);
}

TEST(TorchLowering, AllProgramsAreEqualByTheirHash) {
  std::map<std::string, int> compared;
  for (const std::string& line : golden_lines("torch_lowered_hashes.txt")) {
    const auto words = split(line, ' ');
    const Schedule order = make(words);
    const auto compare = [&](const std::string& what, std::size_t column, const Schedule& ours) {
      if (words.at(column) == "-") return;
      EXPECT_EQ(std::to_string(stable_hash(to_csv(ours))), words.at(column)) << what << "\n"
                                                                             << line;
      ++compared[what];
    };
    compare("lowered", 5, lower_as_torch(order));
    compare("messages", 6, add_send_recv_as_torch(order));
    compare("fused", 7, fuse_backwards(order));
  }
  EXPECT_EQ(compared,
            (std::map<std::string, int>{{"lowered", 316}, {"messages", 181}, {"fused", 68}}));
}

// "(0SEND_F1;0RECV_B0)BATCH" issues both at once, in this order; a WAIT is no action.
std::string issued_actions(const std::string& row) {
  std::vector<std::string> actions;
  for (const std::string& field : split(row, ',')) {
    if (field.starts_with("WAIT")) continue;
    if (!field.starts_with("(")) {
      actions.push_back(field);
      continue;
    }
    EXPECT_TRUE(field.ends_with(")BATCH")) << field;
    for (std::string& action : split(field.substr(1, field.find(')') - 1), ';')) {
      actions.push_back(std::move(action));
    }
  }
  return join(actions, ",");
}

TEST(TorchLowering, GPipeAnd1F1BAreWhatTorchIssues) {
  const auto lines = golden_lines("torch_programs.txt");
  int compared = 0;
  for (std::size_t i = 0; i < lines.size(); ++compared) {
    SCOPED_TRACE(lines[i]);
    const auto words = split(lines[i++], ' ');
    const Sizes sizes{.ranks = std::stoi(words.at(1)), .microbatches = std::stoi(words.at(2))};
    std::string text;
    for (int rank = 0; rank < sizes.ranks; ++rank) text += issued_actions(lines.at(i++)) + "\n";
    EXPECT_EQ(to_csv(torch_program(words.at(0), sizes)), text);
  }
  EXPECT_EQ(compared, 46);
}

}  // namespace
}  // namespace penstock::schedule
