// The generators against what torch.distributed.pipelining writes or runs.
#include <gtest/gtest.h>

#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/torch.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"
#include "tests/support/golden.h"

namespace penstock::schedule {
namespace {

using testing_support::golden_lines;

// "(0SEND_F1;0RECV_B0)BATCH" is both; WAITs and messages are torch's own.
Program compute_order_of_torch(const std::string& row) {
  Program program;
  for (const std::string& field : split(row, ',')) {
    if (field.starts_with("WAIT") || field.starts_with("(")) continue;
    const Action action = parse_action(field);
    if (is_compute(action.op)) program.push_back(action);
  }
  return program;
}

TEST(TorchOrders, GPipeAnd1F1BComputeInTheOrderThatTorchRuns) {
  const auto lines = golden_lines("torch_programs.txt");
  std::set<std::string> compared;
  for (std::size_t i = 0; i < lines.size();) {
    SCOPED_TRACE(lines[i]);
    const auto words = split(lines[i++], ' ');
    ASSERT_EQ(words.size(), 3u);
    const Schedule ours = make_schedule(
        words[0], {.ranks = std::stoi(words[1]), .microbatches = std::stoi(words[2])});
    for (const Program& program : ours.programs) {
      ASSERT_LT(i, lines.size());
      EXPECT_EQ(join(program, " "), join(compute_order_of_torch(lines[i++]), " "));
    }
    compared.insert(words[0] + " " + words[1]);
  }
  EXPECT_EQ(compared,
            (std::set<std::string>{"1f1b 1", "1f1b 2", "1f1b 4", "gpipe 1", "gpipe 2", "gpipe 4"}));
}

// "ScheduleLoopedBFS 2 4 8": schedule, ranks, stages per rank, microbatches.
Schedule make(const std::vector<std::string>& words) {
  return make_schedule(words.at(0), {.ranks = std::stoi(words.at(1)),
                                     .stages_per_rank = std::stoi(words.at(2)),
                                     .microbatches = std::stoi(words.at(3))});
}

TEST(TorchOrders, OthersAreEqualActionForAction) {
  const auto lines = golden_lines("torch_orders.txt");
  int equal = 0;
  int refused = 0;
  for (std::size_t i = 0; i < lines.size();) {
    SCOPED_TRACE(lines[i]);
    const auto words = split(lines[i++], ' ');
    if (words.size() == 5) {
      EXPECT_THROW(make(words), ScheduleError);
      ++refused;
      continue;
    }
    std::string text;
    for (const int end = std::stoi(words.at(1)) + static_cast<int>(i); static_cast<int>(i) < end;) {
      text += lines.at(i++) + "\n";
    }
    EXPECT_EQ(to_csv(make(words)), text);
    ++equal;
  }
  EXPECT_EQ(equal, 240);
  EXPECT_EQ(refused, 135);
}

TEST(TorchOrders, LongOnesAreEqualByTheirHash) {
  const auto lines = golden_lines("torch_order_hashes.txt");
  EXPECT_EQ(lines.size(), 57u);
  for (const std::string& line : lines) {
    const auto words = split(line, ' ');
    EXPECT_EQ(std::to_string(stable_hash(to_csv(make(words)))), words.at(4)) << line;
  }
}

// The last rank's F is always one microbatch ahead: no program could run so.
std::string as_torch_shows_1f1b(Schedule order) {
  for (Action& action : order.programs.back()) {
    if (action.op == Op::Forward) ++action.microbatch->value;
  }
  return to_csv(order);
}

// Difference: torch shows another 1F1B than it runs.
TEST(TorchOrders, Of1F1BAreRightWhereTorchShowsThemOffByOne) {
  const auto lines = golden_lines("torch_1f1b_tables.txt");
  int compared = 0;
  int refused = 0;
  for (std::size_t i = 0; i < lines.size();) {
    SCOPED_TRACE(lines[i]);
    const auto words = split(lines[i++], ' ');
    const Sizes sizes{.ranks = std::stoi(words.at(0)), .microbatches = std::stoi(words.at(1))};
    if (words.size() == 3) {
      EXPECT_THROW(torch_timetable("Schedule1F1B", sizes), ScheduleError);
      EXPECT_THROW(torch_program("schedule1f1b", sizes), ScheduleError);
      EXPECT_EQ(make_schedule("1f1b", sizes).microbatches, sizes.microbatches);
      ++refused;
      continue;
    }
    const Timetable ours = torch_timetable("Schedule1F1B", sizes);
    std::string text;
    for (int rank = 0; rank < sizes.ranks; ++rank) text += lines.at(i++) + "\n";
    EXPECT_EQ(to_csv(ours), to_csv(ours.schedule)) << "no idle slots";
    EXPECT_EQ(as_torch_shows_1f1b(ours.schedule), text);
    ++compared;
  }
  EXPECT_EQ(compared, 21);
  EXPECT_EQ(refused, 4);
}

TEST(TorchOrders, StagesAreOnTheRanksWhereTorchHasThem) {
  const auto lines = golden_lines("torch_placements.txt");
  EXPECT_EQ(lines.size(), 66u);
  for (const std::string& line : lines) {
    SCOPED_TRACE(line);
    const std::size_t bar = line.find(" | ");
    const auto verdict = verify::verify(make(split(line.substr(0, bar), ' ')));
    ASSERT_TRUE(verdict.diagnostics.empty());
    EXPECT_EQ(join(verdict.facts.homes.of_stages(), " "), line.substr(bar + 3));
  }
}

}  // namespace
}  // namespace penstock::schedule
