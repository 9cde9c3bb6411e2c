// A Trainer that changes its program between steps: not a bit changes, and ranks that were given
// different programs are told.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "penstock/core/error.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/search/reorder.h"
#include "penstock/runtime/train/handshake.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

constexpr std::int32_t kMicrobatches = 4;
constexpr int kSteps = 6;

schedule::Schedule program(const char* name, std::int32_t ranks = 2) {
  return lower::training_program({.schedule = name, .ranks = ranks, .microbatches = kMicrobatches})
      .schedule();
}

// What no generator writes: halves apart, on one rank alone.
schedule::Schedule with_halves(std::int32_t rank) {
  schedule::Schedule order = search::compute_order_of(program("1f1b"));
  schedule::Schedule split = schedule::split_backwards(order);
  order.programs[static_cast<std::size_t>(rank)] = split.programs[static_cast<std::size_t>(rank)];
  order.name = "halves";
  return lower::with_messages(order, "penstock");
}

struct Layout {
  ZeroStage stage = ZeroStage::Off;
  std::int32_t data = 1;
  GradientSums sums = GradientSums::AsTheyCome;
};

TrainerOptions options_of(const Layout& layout) {
  return {.mesh = {.pipe = 2, .data = layout.data},
          .schedule = "gpipe",
          .microbatches = kMicrobatches,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1},
          .gradient_clipping = 0.5,
          .sums = layout.sums,
          .zero = {.stage = layout.stage,
                   .bucket_bytes = 6000,
                   .limits = {.budget_bytes = 18000, .prefetch_bytes = 6000}}};
}

using Change = std::function<void(Trainer&, int step)>;

// As train() of trained.h, with what happens before a step.
Trained train_with(const TrainerOptions& options, const Kind& kind,
                   const std::vector<Batch2>& batches, const Change& change) {
  Trained trained;
  std::mutex mutex;
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const auto replica =
        static_cast<std::size_t>(trainer.layout().mesh.coordinate(communicator.rank()).data);
    const auto mine = [&](const nn::Values& values) -> nn::Values {
      return values[0].chunk(options.mesh.data)[replica];
    };
    for (int step = 1; step <= kSteps; ++step) {
      const Batch2& batch = batches[static_cast<std::size_t>(step - 1)];
      change(trainer, step);
      const StepReport report = trainer.step(mine(batch.inputs), mine(batch.targets));
      if (step == 3) trainer.evaluate(mine(batch.inputs), mine(batch.targets));
      if (communicator.rank().value == 0) trained.reports.push_back(report);
    }
    const auto whole = trainer.rank_model().whole_parameters();
    const std::lock_guard lock(mutex);
    for (const stage::Stage& each : trainer.rank_model().stages()) {
      for (const auto& [name, tensor] : each.parameters()) {
        trained.parameters.emplace(name, tensor.detach().clone());
      }
    }
  });
  return trained;
}

class ChangedPrograms : public testing::TestWithParam<const char*> {};

TEST_P(ChangedPrograms, KeepEveryBit) {
  at::manual_seed(3);
  const Kind kind = kind_named(GetParam());
  const std::vector<Layout> layouts = {{},
                                       {ZeroStage::Off, 2},
                                       {ZeroStage::OptimizerStates, 2},
                                       {ZeroStage::Parameters, 2},
                                       {ZeroStage::Off, 2, GradientSums::Invariant}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(static_cast<int>(layout.stage));
    const TrainerOptions options = options_of(layout);
    std::vector<Batch2> batches;
    for (int i = 0; i < kSteps; ++i) {
      // Two samples in a microbatch: BatchNorm wants as many.
      batches.push_back(kind.batch(2 * kMicrobatches * layout.data, kSequence));
    }
    const Trained stayed = train_with(options, kind, batches, [](Trainer&, int) {});
    const Trained changed = train_with(options, kind, batches, [](Trainer& trainer, int step) {
      if (step == 2) trainer.program().change(program("1f1b"));
      if (step == 4) trainer.program().change(with_halves(0));
      if (step == 5) trainer.program().change(with_halves(1));
      if (step == 6) trainer.program().change(program("gpipe"));  // With more activations.
      EXPECT_EQ(trainer.program().changes(), step < 2 ? 0 : step < 4 ? 1 : step - 2);
    });
    EXPECT_TRUE(same(stayed, changed));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ChangedPrograms,
                         testing::Values("Mlp", "BatchNorm", "TiedGpt", "Dropout"),
                         [](const auto& each) { return std::string(each.param); });

// Each rank may be given another program; all of them hear of it, and go on as before.
TEST(ChangeProgram, RanksThatDisagreeAreTold) {
  const Kind kind = kind_named("Mlp");
  const std::vector<Batch2> batches(kSteps, kind.batch(kMicrobatches, kSequence));
  const TrainerOptions options = options_of({});
  std::atomic<int> told = 0;
  const Trained stayed = train_with(options, kind, batches, [](Trainer&, int) {});
  const Trained same_as_before =
      train_with(options, kind, batches, [&](Trainer& trainer, int step) {
        if (step != 3) return;
        const std::int32_t rank = trainer.rank_model().groups().pipe.here;
        try {
          trainer.program().change(with_halves(rank));
          ADD_FAILURE() << "nobody noticed";
        } catch (const DifferenceError& error) {
          EXPECT_NE(error.message().find("ranks 0 and 1 do not run the same thing: rank 0 has "
                                         "schedule program="),
                    std::string::npos)
              << error.message();
          ++told;
        }
        EXPECT_EQ(trainer.program().changes(), 0);
      });
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(same(stayed, same_as_before));
}

TEST(ChangeProgram, WhatWouldChangeResultsIsRefusedAndTheRunGoesOn) {
  const Kind kind = kind_named("Mlp");
  const std::vector<Batch2> batches(kSteps, kind.batch(kMicrobatches, kSequence));
  std::atomic<int> refused = 0;
  const auto refuse = [&](Trainer& trainer, schedule::Schedule next, const std::string& why) {
    try {
      trainer.program().change(std::move(next));
      ADD_FAILURE() << "taken: " << why;
    } catch (const ScheduleError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      ++refused;
    }
  };
  const Trained stayed = train_with(options_of({}), kind, batches, [](Trainer&, int) {});
  const Trained went_on =
      train_with(options_of({}), kind, batches, [&](Trainer& trainer, int step) {
        if (step != 2) return;
        schedule::Schedule moved = program("gpipe");
        std::swap(moved.programs[0], moved.programs[1]);
        refuse(trainer, moved, "stage 0 on rank 1, its weights are on rank 0");
        schedule::Schedule order = search::compute_order_of(program("gpipe"));
        for (schedule::Program& each : order.programs) std::reverse(each.begin() + 4, each.end());
        refuse(trainer, lower::with_messages(order, "penstock"),
               "stage 0 would add its gradients in the order 3 2 1 0");
        schedule::Schedule cut = program("gpipe");
        cut.programs[1].pop_back();
        cut.programs[1].pop_back();
        refuse(trainer, cut, "1");
      });
  EXPECT_EQ(refused, 6);
  EXPECT_TRUE(same(stayed, went_on));
}

// The whole cause is known on every rank when one of them fails while the others change.
TEST(ChangeProgram, ARankThatFailsIsNamedByThoseThatWait) {
  const Kind kind = kind_named("Mlp");
  std::atomic<int> heard = 0;
  const auto body = [&](comm::Communicator& communicator) {
    Trainer trainer(options_of({}), kind.model, kind.loss, communicator);
    if (communicator.rank().value == 1) {
      communicator.fail_with("rank 1 failed: no more");
      return;
    }
    try {
      trainer.program().change(program("1f1b"));
    } catch (const CommError& error) {
      EXPECT_NE(error.message().find("rank 1 failed: no more"), std::string::npos)
          << error.message();
      ++heard;
    }
  };
  comm::run_ranks(2, body);
  EXPECT_EQ(heard, 1);
}

}  // namespace
}  // namespace penstock::train
