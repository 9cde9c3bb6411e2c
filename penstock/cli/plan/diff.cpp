#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/schedule_choice.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/difference.h"

namespace penstock::cli {
namespace {

struct DiffCommand {
  std::string a;
  std::string b;
  ScheduleChoice choice;
};

int run_diff(const DiffCommand& command) {
  const bool are_files = takes_file(command.a) && takes_file(command.b);
  const auto schedule = [&](const std::string& word) {
    ScheduleChoice choice = command.choice;
    if (takes_file(word) && !are_files) choice.sizes = {};  // They are the other one's.
    return chosen_schedule(word, choice, "schedule diff").schedule;
  };
  const schedule::Schedule a = schedule(command.a);
  const schedule::Schedule b = schedule(command.b);
  const std::string difference = schedule::difference(a, b);
  if (difference.empty()) {
    write_output(str("equal: ", title(a), "\n"), "");
    return static_cast<int>(ExitCode::Ok);
  }
  write_output(str("A: ", title(a), "\nB: ", title(b), "\n", difference), "");
  return static_cast<int>(ExitCode::Failure);
}

}  // namespace

Command declare_diff_command(CLI::App& app) {
  const auto command = std::make_shared<DiffCommand>();
  app.add_option("a", command->a, "a file, or the name of a schedule with sizes")
      ->required()
      ->type_name("A");
  app.add_option("b", command->b, "another one")->required()->type_name("B");
  declare_sizes(app, command->choice.sizes);
  declare_lowered(app, command->choice.lowered);
  app.footer(
      "For each rank that differs: its first difference, then the edits that make A's program "
      "B's,\n"
      "[-only in A-] and {+only in B+}.  Exit codes: 0 equal, 1 different, 2 bad input.\n"
      "Examples:\n"
      "  penstock schedule diff 1f1b zb_h1 --ranks 4 --microbatches 8\n"
      "  penstock schedule diff mine.csv 1f1b --ranks 4 --microbatches 8");
  return [command] { return run_diff(*command); };
}

}  // namespace penstock::cli
