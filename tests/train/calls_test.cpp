// Calls of a Trainer, and of its Checkpoints, that one rank makes alone: all are told which ones.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/saving/checkpoints.h"
#include "penstock/train/trainer.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using saving::Checkpoints;
using namespace std::chrono_literals;

struct Program {
  Trainer& trainer;
  Checkpoints& checkpoints;

  void step() const { trainer.step(at::ones({4, kWidth}), at::ones({4, kWidth})); }
  void evaluate() const { trainer.evaluate(at::ones({4, kWidth}), at::ones({4, kWidth})); }
};
using Calls = std::function<void(const Program&)>;

// How the calls of two ranks end, after a step that both take.
std::vector<std::string> errors_of(const TrainerOptions& options, const Calls& first,
                                   const Calls& second) {
  std::vector<std::string> errors(2);
  const testing_support::TemporaryFolder folder;
  comm::run_ranks(
      2,
      [&](comm::Communicator& communicator) {
        const Kind kind = kind_named("Skips");
        Trainer trainer(options, kind.model, kind.loss, communicator);
        execute::Progress progress;
        Checkpoints checkpoints(trainer, communicator, progress, {.directory = folder.path()},
                                [](const std::string&) {});
        const Program run{trainer, checkpoints};
        run.step();
        try {
          (communicator.rank().value == 0 ? first : second)(run);
        } catch (const Error& error) {
          errors[communicator.rank().index()] = error.message();
          communicator.fail(error);
        }
      },
      300s);
  return errors;
}

TEST(TrainerCalls, ThatOneRankMakesAloneAreNamed) {
  const Calls step = [](const Program& run) { run.step(); };
  const Calls evaluate = [](const Program& run) { run.evaluate(); };
  const Calls save = [](const Program& run) { run.checkpoints.save(); };
  struct Case {
    TrainerOptions options;
    Calls first;
    Calls second;
    const char* words;
  };
  const TrainerOptions pipe{.mesh = {.pipe = 2}, .microbatches = 2};
  const TrainerOptions data{.mesh = {.data = 2}, .microbatches = 2};
  const std::vector<Case> cases = {
      {data, save, step, "rank 0 is in Checkpoints::save(), rank 1 is in Trainer::step()"},
      {pipe, step, save, "rank 0 is in Trainer::step(), rank 1 is in Checkpoints::save()"},
      {pipe, evaluate, step, "rank 0 is in Trainer::evaluate(), rank 1 is in Trainer::step()"},
  };
  for (const Case& each : cases) {
    for (const std::string& error : errors_of(each.options, each.first, each.second)) {
      EXPECT_NE(error.find(std::string(each.words) + ": both are calls for all ranks"),
                std::string::npos)
          << error;
    }
  }
}

}  // namespace
}  // namespace penstock::train
