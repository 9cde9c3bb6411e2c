// ZeRO 3: parameters that come when an operator reads them, and what goes wrong with them.
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>

#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/choosing.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;

constexpr std::int64_t kBucketBytes = 6000;  // Several pages a stage.
// Room for a few.
constexpr paging::Limits kLimits{.budget_bytes = 3 * kBucketBytes, .prefetch_bytes = kBucketBytes};

// One that takes what an operator reads: `pipe` stages, on two replicas.
TrainerOptions paged(std::int32_t pipe, std::int64_t bucket_bytes, paging::Limits limits) {
  return {.mesh = {.pipe = pipe, .data = 2},
          .partition = partition::Uniform{},
          .zero = {.stage = ZeroStage::Parameters, .bucket_bytes = bucket_bytes, .limits = limits}};
}

void expect_the_bits_of_whole_replicas(const Kind& kind, const TrainerOptions& options,
                                       const std::vector<Batch2>& batches) {
  TrainerOptions whole = options;
  whole.zero.stage = ZeroStage::Off;
  EXPECT_TRUE(same(train(options, kind, batches), train(whole, kind, batches)));
}

// What each rank's Trainer says of its last step.
std::vector<parameters::PagerReport> page_reports(const Kind& kind, const TrainerOptions& options,
                                                  int steps) {
  std::vector<parameters::PagerReport> reports;
  const Batch2 batch = kind.batch(4, kSequence);
  comm::run_ranks(options.mesh.pipe * 2, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    for (int step = 0; step < steps; ++step) {
      trainer.step(batch.inputs, batch.targets);
      if (communicator.rank().value == 0)
        reports.push_back(trainer.rank_model().replicated().paging());
    }
  });
  return reports;
}

TEST(ZeroParameters, AreAwayBetweenStepsAndNoMoreAreHereThanTheBudget) {
  const Kind kind = kind_named("Gpt");
  for (const auto& report : page_reports(kind, paged(1, kBucketBytes, kLimits), 2)) {
    EXPECT_GT(report.peak_bytes, 0);
    EXPECT_LE(report.peak_bytes, kLimits.budget_bytes);
    EXPECT_GT(report.drops, 0);
  }
  const auto before = page_reports(kind, paged(1, kBucketBytes, {.budget_bytes = 1 << 30}), 1);
  EXPECT_GT(before.front().peak_bytes, kLimits.budget_bytes) << "the model has more";
  EXPECT_EQ(before.front().drops, 0);
}

TEST(ZeroParameters, ThePagesOfTheSecondStepAreFetchedBeforeTheyAreUsed) {
  const paging::Limits limits{.budget_bytes = 1 << 20, .prefetch_bytes = 1 << 16};
  const auto reports = page_reports(kind_named("Gpt"), paged(1, kBucketBytes, limits), 3);
  EXPECT_FALSE(reports[0].followed_trace);
  EXPECT_EQ(reports[0].prefetches, 0);
  for (const std::size_t step : {1, 2}) {
    EXPECT_TRUE(reports[step].followed_trace);
    EXPECT_EQ(reports[step].faults, 1) << "the first use";
    EXPECT_GT(reports[step].prefetches, 5);
    EXPECT_EQ(reports[step].uses, reports[0].uses);
  }
}

// UNSHARD and RESHARD bring and drop whole stages: no operator finds a page away.
TEST(ZeroParameters, AProgramsOwnUnshardBringsWholeStages) {
  const testing_support::TemporaryFolder folder;
  const auto order = schedule::make_schedule("interleaved_1f1b",
                                             {.ranks = 2, .stages_per_rank = 2, .microbatches = 2});
  std::ofstream(folder.file("program.csv"))
      << schedule::to_csv(schedule::lower_communication(schedule::add_unshard(order, 1)));
  TrainerOptions options = paged(2, kBucketBytes, kLimits);
  options.program = folder.file("program.csv");
  options.microbatches = 2;
  for (const auto& report : page_reports(kind_named("Gpt"), options, 2)) {
    EXPECT_EQ(report.faults, 0);
    EXPECT_GT(report.uses, 0);
  }
}

// All replicas take the other branch together: no error, and the same bits.
TEST(ZeroParameters, AnOrderThatChangesFromStepToStepIsLearntAgain) {
  const Kind kind = choosing(0, [](const at::Tensor& input) {
    return Choice{.left = input.size(1) % 2 == 0, .right = input.size(1) % 2 != 0};
  });
  std::vector<Batch2> batches;
  for (const std::int64_t length : {4, 5, 5, 4, 4}) {
    const auto vectors = [&] { return at::rand({8, length, kWidth}); };
    batches.push_back({vectors(), vectors()});
  }
  expect_the_bits_of_whole_replicas(kind, paged(1, 1, kLimits), batches);
}

// The errors of all ranks of two replicas, whose inputs differ.
std::vector<std::string> errors_of(const Kind& kind, const TrainerOptions& options,
                                   const std::array<at::Tensor, 2>& inputs) {
  std::vector<std::string> errors(static_cast<std::size_t>(2 * options.mesh.pipe));
  comm::run_ranks(
      2 * options.mesh.pipe,
      [&](comm::Communicator& communicator) {
        Trainer trainer(options, kind.model, kind.loss, communicator);
        const auto replica =
            static_cast<std::size_t>(trainer.layout().mesh.coordinate(communicator.rank()).data);
        try {
          trainer.step(inputs[replica], inputs[replica]);
        } catch (const CommError& error) {
          errors[communicator.rank().index()] = error.message();
        }
      },
      std::chrono::seconds(10));
  return errors;
}

// A replica's data decide here which parameter it reads.
TEST(ZeroParameters, ReplicasThatReadOthersEndInOneErrorOnAllRanks) {
  const Kind kind = choosing(0, [](const at::Tensor& input) {
    const bool is_left = input.sum().item<double>() > 0;
    return Choice{.left = is_left, .right = !is_left};
  });
  for (const std::string& error : errors_of(
           kind, paged(2, 1, kLimits), {at::full({4, kWidth}, 1.0), at::full({4, kWidth}, -1.0)})) {
    EXPECT_NE(error.find("replicas run different operators: replica 0 uses \"0.left\", replica 1 "
                         "uses \"0.right\""),
              std::string::npos)
        << error;
  }
}

// Replica 0 wants a page in the third microbatch, and replica 1, which has all it wants, never
// wants one again; it waits for the second stage, whose replicas both want one then, and there
// replica 1 waits for replica 0.
TEST(ZeroParameters, ReplicasOfWhichOneReadsNothingMoreEndInOneErrorOnAllRanks) {
  Kind kind = choosing(
      0, [](const at::Tensor& input) { return Choice{.right = input.sum().item<double>() > 0}; });
  kind.model[5] = choosing(5, [calls = 0](const at::Tensor&) mutable {
                    return Choice{.right = ++calls > 2};
                  }).model[5];
  TrainerOptions options = paged(2, 1, {.budget_bytes = 1 << 30});
  options.schedule = "gpipe";
  options.microbatches = 4;
  const at::Tensor other = at::full({4, kWidth}, -1.0);
  other[2].fill_(1.0);
  for (const std::string& error : errors_of(kind, options, {other, at::full({4, kWidth}, -1.0)})) {
    EXPECT_NE(error.find("replicas run different operators: replica 0 uses \"0.right\", replica 1 "
                         "is at the end of a forward or backward"),
              std::string::npos)
        << error;
  }
}

// A layer that hands on its parameter, and a view of it, and one that uses them.
class HandsOn : public nn::Layer {
 public:
  HandsOn() : weight_(register_parameter("weight", at::rand({kWidth, kWidth}))) {}
  nn::Values forward_values(const nn::Values& inputs) override {
    return {at::linear(inputs[0], weight_), weight_, weight_.t()[0]};
  }

 private:
  at::Tensor weight_;
};

class TakesUp : public nn::Layer {
 public:
  nn::Values forward_values(const nn::Values& inputs) override {
    return at::linear(inputs[0], inputs[1]) * inputs[2];
  }
};

TEST(ZeroParameters, MayBeHandedOnToAnotherStage) {
  Kind kind = kind_named("Mlp");
  kind.model[3] = nn::layer("hands_on", [] { return std::make_shared<HandsOn>(); });
  kind.model[4] = nn::layer("takes_up", [] { return std::make_shared<TakesUp>(); });
  std::vector<Batch2> batches;
  for (int i = 0; i < 3; ++i) batches.push_back(kind.batch(8, kSequence));
  for (const char* schedule : {"1f1b", "gpipe"}) {
    TrainerOptions options = paged(2, 1, {});
    options.schedule = schedule;
    options.microbatches = 2;
    expect_the_bits_of_whole_replicas(kind, options, batches);
  }
}

TEST(ZeroParameters, AReadOutsideOfAStepIsAnErrorByNameAndNoCollective) {
  const Kind kind = kind_named("Gpt");
  const Batch2 batch = kind.batch(4, kSequence);
  std::array<std::string, 2> errors;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(paged(1, kBucketBytes, kLimits), kind.model, kind.loss, communicator);
    trainer.step(batch.inputs, batch.targets);
    const auto& [name, tensor] = trainer.parameters()[2];
    if (communicator.rank().value == 0) {
      EXPECT_TRUE(std::isnan(tensor.norm().item<double>()));  // Alone: it must not wait.
    }
    try {
      trainer.step(batch.inputs, batch.targets);
    } catch (const Error& error) {
      errors[communicator.rank().index()] = error.message();
    }
    EXPECT_NE(errors[communicator.rank().index()].find(name), std::string::npos);
  });
  EXPECT_EQ(errors[0].rfind("parameter \"", 0), 0U) << errors[0];
}

TEST(ZeroParameters, MayBeReadAndSetWhileTheyAreHeld) {
  const Kind kind = kind_named("Gpt");
  const Batch2 batch = kind.batch(4, kSequence);
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(paged(1, kBucketBytes, kLimits), kind.model, kind.loss, communicator);
    const at::Tensor& tensor = trainer.parameters()[0].tensor;
    {
      const auto whole = trainer.rank_model().whole_parameters();
      EXPECT_TRUE(std::isfinite(tensor.norm().item<double>()));
    }
    trainer.step(batch.inputs, batch.targets);
    EXPECT_EQ(tensor.storage().nbytes(), 0U);
    {
      const auto whole = trainer.rank_model().whole_parameters();
      const at::NoGradGuard no_grad;
      tensor.mul_(2);
    }
    const double loss = trainer.evaluate(batch.inputs, batch.targets);
    EXPECT_NEAR(trainer.step(batch.inputs, batch.targets).loss, loss, 1e-6);
  });
}

// What is held over a step is what the step makes of it.
TEST(ZeroParameters, ThatAreHeldAreUpdated) {
  const Kind kind = kind_named("Gpt");
  const Batch2 batch = kind.batch(4, kSequence);
  const TrainerOptions options = paged(1, kBucketBytes, kLimits);
  const Trained expected = train(options, kind, {batch, batch});
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const auto whole = trainer.rank_model().whole_parameters();
    const auto replica = communicator.rank().index();
    for (int step = 0; step < 2; ++step) {
      trainer.step(batch.inputs[0].chunk(2)[replica], batch.targets[0].chunk(2)[replica]);
    }
    for (const auto& [name, tensor] : trainer.parameters()) {
      EXPECT_TRUE(same_bits(tensor, expected.parameters.at(name))) << name;
    }
  });
}

TEST(ZeroParameters, EvaluationAndInferenceAreThoseOfWholeReplicas) {
  const Kind kind = kind_named("Gpt");
  const Batch2 batch = kind.batch(4, kSequence);
  const auto results = [&](ZeroStage stage) {
    std::pair<double, at::Tensor> result;
    comm::run_ranks(4, [&](comm::Communicator& communicator) {
      TrainerOptions options = paged(2, kBucketBytes, kLimits);
      options.zero.stage = stage;
      Trainer trainer(options, kind.model, kind.loss, communicator);
      trainer.step(batch.inputs, batch.targets);
      const double loss = trainer.evaluate(batch.inputs, batch.targets);
      const nn::Values outputs = trainer.infer(batch.inputs);
      if (trainer.rank_model().is_last_stage() &&
          trainer.layout().mesh.coordinate(communicator.rank()).data == 0) {
        result = {loss, outputs[0]};
      }
    });
    return result;
  };
  const auto whole = results(ZeroStage::Off), spread = results(ZeroStage::Parameters);
  EXPECT_EQ(spread.first, whole.first);
  EXPECT_TRUE(same_bits(spread.second, whole.second));
}

}  // namespace
}  // namespace penstock::train
