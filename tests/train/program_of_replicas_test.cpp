// A Trainer whose program is that of several replicas, of which ranks may be missing: what it
// trains is what whole replicas train.
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/schedule/json.h"
#include "penstock/plan/search/reroute.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

struct Case {
  const char* schedule = "1f1b";
  std::int32_t pipe = 2;
  std::int32_t replicas = 2;
  std::int32_t microbatches = 1;  // Of each replica.
  std::vector<Rank> lost = {};
};

// All ranks of whole replicas, in the order of a mesh; microbatches of a replica in a row, as
// whole replicas have them.
schedule::Schedule together(const Case& c) {
  const schedule::Schedule one = schedule::make_schedule(
      c.schedule, {.ranks = c.pipe,
                   .stages_per_rank = schedule::find_generator(c.schedule).stages_per_rank,
                   .microbatches = c.microbatches});
  schedule::Schedule all = one;
  all.replicas = c.replicas;
  all.microbatches = c.microbatches * c.replicas;
  all.programs.clear();
  for (const schedule::Program& program : one.programs) {
    for (std::int32_t k = 0; k < c.replicas; ++k) {
      schedule::Program& copy = all.programs.emplace_back(program);
      for (schedule::Action& action : copy) {
        action.microbatch = Microbatch(action.microbatch->value + k * c.microbatches);
      }
    }
  }
  return all;
}

schedule::Schedule rerouted(const Case& c) {
  const auto one = verify::VerifiedSchedule::from(schedule::make_schedule(
      c.schedule, {.ranks = c.pipe,
                   .stages_per_rank = schedule::find_generator(c.schedule).stages_per_rank,
                   .microbatches = c.microbatches}));
  return search::reroute({.schedule = one, .replicas = c.replicas, .lost = c.lost})
      .schedule.schedule();
}

TrainerOptions options_of(const Case& c, ZeroStage stage) {
  return {.mesh = {.pipe = c.pipe, .data = c.replicas},
          .schedule = c.schedule,
          .microbatches = c.microbatches,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1},
          .gradient_clipping = 0.5,
          .zero = {.stage = stage, .bucket_bytes = 600}};
}

// Those that take one tensor, as train() cuts it.
std::vector<Kind> kinds() {
  std::vector<Kind> kinds = all_kinds();
  std::erase_if(kinds, [](const Kind& kind) { return kind.batch(2, 4).inputs.size() > 1; });
  return kinds;
}

bool is_tied(const Kind& kind) { return kind.name == "TiedGpt" || kind.name == "Ties"; }

class ProgramOfReplicas : public testing::Test {
 protected:
  TrainerOptions with(TrainerOptions options, const schedule::Schedule& program) {
    std::ofstream(folder_.file("program.json")) << schedule::to_json(program);
    options.program = folder_.file("program.json");
    options.mesh = {.pipe = program.ranks(), .data = 1};
    options.microbatches = program.microbatches;
    options.stages_per_rank = {};
    return options;
  }

  static std::vector<Batch2> batches_of(const Kind& kind, const Case& c) {
    at::manual_seed(3);
    std::vector<Batch2> batches;
    const std::int64_t samples = 2 * std::int64_t{c.microbatches} * c.replicas;
    for (const int length : {6, 6, 4}) batches.push_back(kind.batch(samples, length));
    return batches;
  }

 private:
  testing_support::TemporaryFolder folder_;
};

// Of every kind of model, to the bit: losses, norms, parameters.
TEST_F(ProgramOfReplicas, OfAllRanksTrainsAsTheReplicas) {
  for (const Kind& kind : kinds()) {
    for (const char* schedule : {"1f1b", "zbv"}) {
      for (const ZeroStage stage :
           {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients}) {
        SCOPED_TRACE(penstock::str(kind.name, " ", schedule, " ZeRO ", number_of(stage)));
        const Case c{.schedule = schedule, .microbatches = 4};
        const TrainerOptions replicas = options_of(c, stage);
        const auto batches = batches_of(kind, c);
        EXPECT_TRUE(same(train::train(replicas, kind, batches),
                         train::train(with(replicas, together(c)), kind, batches)));
      }
    }
  }
}

// Of two summands, every order of additions gives the same bits.
TEST_F(ProgramOfReplicas, WithoutARankTrainsAsTheReplicas) {
  for (const Kind& kind : kinds()) {
    if (kind.name == "BatchNorm") continue;  // Buffers are those of the first rank of a stage.
    for (const ZeroStage stage : {ZeroStage::Off, ZeroStage::Gradients}) {
      if (is_tied(kind) && stage != ZeroStage::Off) continue;
      const TrainerOptions replicas = options_of({}, stage);
      const auto batches = batches_of(kind, {});
      const Trained whole = train::train(replicas, kind, batches);
      for (std::int32_t lost = 0; lost < 4; ++lost) {
        SCOPED_TRACE(penstock::str(kind.name, " without rank ", lost, " ZeRO ", number_of(stage)));
        const schedule::Schedule left = rerouted({.lost = {Rank(lost)}});
        EXPECT_TRUE(same(whole, train::train(with(replicas, left), kind, batches)));
      }
    }
  }
}

// Three replicas, two of whose ranks are gone.  A stage's gradients of 12 microbatches are added in
// another order: the last bits of float may differ, a hundredth of the bound.
TEST_F(ProgramOfReplicas, WithoutTwoRanksTrainsNearlyAsTheReplicas) {
  const Kind kind = kind_named("GptWithDropout");
  for (const char* schedule : {"1f1b", "zbv", "interleaved"}) {
    const Case c{
        .schedule = schedule, .replicas = 3, .microbatches = 4, .lost = {Rank(1), Rank(5)}};
    SCOPED_TRACE(schedule);
    const TrainerOptions replicas = options_of(c, ZeroStage::OptimizerStates);
    const auto batches = batches_of(kind, c);
    const Trained whole = train::train(with(replicas, together(c)), kind, batches);
    const Trained left = train::train(with(replicas, rerouted(c)), kind, batches);
    ASSERT_EQ(whole.reports.size(), left.reports.size());
    for (std::size_t i = 0; i < left.reports.size(); ++i) {
      EXPECT_NEAR(left.reports[i].loss, whole.reports[i].loss, 2e-6);
      EXPECT_NEAR(left.reports[i].grad_norm, whole.reports[i].grad_norm, 2e-6);
    }
  }
}

// Whoever has which microbatches: the bits of one rank that has all.
TEST_F(ProgramOfReplicas, WithoutRanksHasTheInvariantSumsOfOneProcess) {
  for (const char* name : {"GptWithDropout", "Ties"}) {
    const Kind kind = kind_named(name);
    for (const char* schedule : {"1f1b", "zbv"}) {
      const Case c{
          .schedule = schedule, .replicas = 3, .microbatches = 4, .lost = {Rank(1), Rank(5)}};
      SCOPED_TRACE(penstock::str(name, " ", schedule));
      TrainerOptions replicas = options_of(c, ZeroStage::Off);
      replicas.sums = GradientSums::Invariant;
      TrainerOptions one = replicas;
      one.mesh = {};
      one.schedule = "gpipe";
      one.microbatches = c.replicas * c.microbatches;
      const auto batches = batches_of(kind, c);
      const Trained whole = train::train(one, kind, batches);
      for (const ZeroStage stage :
           {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients}) {
        if (is_tied(kind) && stage != ZeroStage::Off) continue;
        SCOPED_TRACE(penstock::str("ZeRO ", number_of(stage)));
        replicas.zero.stage = stage;
        EXPECT_TRUE(same(whole, train::train(with(replicas, rerouted(c)), kind, batches)));
        EXPECT_TRUE(same(whole, train::train(with(replicas, together(c)), kind, batches)));
      }
    }
  }
}

TEST_F(ProgramOfReplicas, EvaluatesAndInfersAsTheReplicas) {
  const Kind kind = kind_named("Gpt");
  const Case c{.replicas = 3, .microbatches = 2, .lost = {Rank(4)}};
  const auto batch = batches_of(kind, c).front();
  const auto outcome = [&](const TrainerOptions& options) {
    double loss = 0.0;
    std::vector<at::Tensor> outputs;
    std::mutex mutex;
    comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
      Trainer trainer(options, kind.model, kind.loss, communicator);
      const auto replica = trainer.rank_model().groups().other_samples.here;
      const auto mine = [&](const nn::Values& values) -> nn::Values {
        return values[0].chunk(options.mesh.data)[static_cast<std::size_t>(replica)];
      };
      const double of_all = trainer.evaluate(mine(batch.inputs), mine(batch.targets));
      const at::Tensor output = trainer.infer(batch.inputs[0].narrow(0, 0, 1));
      const std::lock_guard lock(mutex);
      loss = of_all;
      EXPECT_EQ(output.defined(), trainer.rank_model().is_last_stage());
      if (output.defined()) outputs.push_back(output);
    });
    for (const at::Tensor& each : outputs) {
      EXPECT_TRUE(testing_support::same_bits(each, outputs.front()));
    }
    return std::pair(loss, outputs.front());
  };
  const TrainerOptions replicas = options_of(c, ZeroStage::Off);
  const auto [loss, output] = outcome(replicas);
  const auto [left_loss, left_output] = outcome(with(replicas, rerouted(c)));
  EXPECT_DOUBLE_EQ(loss, left_loss);
  EXPECT_TRUE(testing_support::same_bits(output, left_output));
}

TEST_F(ProgramOfReplicas, RefusesWhatItCannotTrain) {
  const Case c{.lost = {Rank(2)}};
  const Kind mlp = kind_named("Mlp"), tied = kind_named("Ties");
  const auto expect = [&](const TrainerOptions& options, const Kind& kind,
                          const std::string& refusal) {
    const std::string text = testing_support::message_of(
        [&] { train::train(with(options, rerouted(c)), kind, batches_of(kind, c)); });
    EXPECT_NE(text.find(refusal), std::string::npos) << text;
  };
  const TrainerOptions options = options_of(c, ZeroStage::Parameters);
  const std::string what = "the schedule is a program of several replicas, and ";
  expect(options, mlp,
         what + "zero_optimization.stage is 3: its ranks do not use parameters together");
  expect(
      options_of(c, ZeroStage::OptimizerStates), tied,
      what + "zero_optimization.stage is 1: the ranks of tied layers would cut them differently");
}

}  // namespace
}  // namespace penstock::train
