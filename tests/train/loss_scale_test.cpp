// What microbatches are to the step's loss and gradients: however a batch is cut, the same.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;
using Tensors = std::map<std::string, at::Tensor>;

struct Result {
  StepReport report;
  double evaluation = 0.0;
  Tensors gradients;
};

// `batches` by replica.
Result run(const TrainerOptions& options, const Kind& kind,
           const std::vector<std::vector<Microbatches>>& batches) {
  Result result;
  std::mutex mutex;
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const std::int32_t replica = trainer.layout().mesh.coordinate(communicator.rank()).data;
    const auto& mine = batches[static_cast<std::size_t>(replica)];
    const StepReport report = trainer.compute_gradients(mine);
    const double evaluation = trainer.evaluate(mine.back());
    const std::lock_guard lock(mutex);
    result.report = report;
    result.evaluation = evaluation;
    for (const auto& [name, tensor] : trainer.parameters()) {
      result.gradients[name] = tensor.grad().clone();
    }
  });
  return result;
}

Microbatches cut(const Batch2& batch, std::int32_t microbatches) {
  return {split(batch.inputs, microbatches), split(batch.targets, microbatches)};
}

nn::Values rows(const nn::Values& values, std::int64_t first, std::int64_t end) {
  return values[0].slice(0, first, end);
}

// Kernels add the samples of another microbatch in another order: gradients, as one vector, differ
// by roundings of their summands.
void expect_within(const Result& got, const Result& expected, double bound) {
  EXPECT_NEAR(got.report.loss, expected.report.loss, bound * std::abs(expected.report.loss));
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  double largest = 0.0;
  for (const auto& [name, gradient] : expected.gradients) {
    largest = std::max(largest, gradient.abs().max().item<double>());
  }
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_LE((got.gradients.at(name) - gradient).abs().max().item<double>(), bound * largest)
        << name;
  }
}

// Targets of one token each, most of them left out: 7, 0, 1 and 3 count in the four microbatches.
Kind classifier() {
  Kind kind = kind_named("Mlp");
  kind.loss = [](const at::Tensor& outputs, const at::Tensor& labels) {
    return at::cross_entropy_loss(outputs, labels);
  };
  return kind;
}

Batch2 labelled() {
  Batch2 batch = vectors(32, 0);
  const at::Tensor labels = at::full({32}, -100, at::kLong);
  for (const int i : {0, 1, 2, 3, 4, 5, 6, 16, 24, 25, 31}) labels[i] = i % kWidth;
  return {batch.inputs, labels};
}

Kind summing() {
  Kind kind = kind_named("Mlp");
  kind.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).pow(2).sum();
  };
  return kind;
}

TEST(LossScale, UnevenMicrobatchesAreTheUnsplitBatch) {
  const Kind kind = kind_named("Mlp");
  const Batch2 batch = kind.batch(10, 0);
  const Result whole = run({.microbatches = 1}, kind, {{cut(batch, 1)}});
  const Microbatches parts = cut(batch, 4);
  EXPECT_EQ(parts.inputs[0][0].size(0), 3);
  EXPECT_EQ(parts.inputs[3][0].size(0), 2);
  expect_within(run({.microbatches = 4}, kind, {{parts}}), whole, 1e-6);
  const Result piped = run({.mesh = {.pipe = 2}, .microbatches = 4}, kind, {{parts}});
  expect_within(piped, whole, 1e-6);
  EXPECT_NEAR(piped.evaluation, whole.report.loss, 1e-6 * whole.report.loss);
}

TEST(LossScale, ReplicasOfDifferentSizesAreOneBatch) {
  const Kind kind = kind_named("Mlp");
  const Batch2 batch = kind.batch(14, 0);
  const Result whole = run({.microbatches = 1}, kind, {{cut(batch, 1)}});
  const auto replica = [&](std::int64_t first, std::int64_t end) {
    return cut({rows(batch.inputs, first, end), rows(batch.targets, first, end)}, 2);
  };
  const Result two = run({.mesh = {.pipe = 2, .data = 2}, .microbatches = 2}, kind,
                         {{replica(0, 4)}, {replica(4, 14)}});
  expect_within(two, whole, 1e-6);
  EXPECT_NEAR(two.evaluation, whole.report.loss, 1e-6 * whole.report.loss);
}

TEST(LossScale, ByTokensAMicrobatchCountsAsManyAsItHasAndOneWithoutAnyNothing) {
  const Kind kind = classifier();
  const Batch2 batch = labelled();
  const Result whole = run({.microbatches = 1}, kind, {{cut(batch, 1)}});
  const TrainerOptions options{
      .mesh = {.pipe = 2}, .microbatches = 4, .loss_scale = LossScale::tokens()};
  const Result parts = run(options, kind, {{cut(batch, 4)}});
  expect_within(parts, whole, 1e-6);
  EXPECT_NEAR(parts.evaluation, whole.report.loss, 1e-6 * whole.report.loss);
}

TEST(LossScale, ASumIsASum) {
  const Kind kind = summing();
  const Batch2 batch = kind.batch(10, 0);
  const TrainerOptions one{.microbatches = 1, .loss_scale = LossScale::sum()};
  const TrainerOptions two{
      .mesh = {.pipe = 2, .data = 2}, .microbatches = 2, .loss_scale = LossScale::sum()};
  const Result whole = run(one, kind, {{cut(batch, 1)}});
  const auto replica = [&](std::int64_t first, std::int64_t end) {
    return cut({rows(batch.inputs, first, end), rows(batch.targets, first, end)}, 2);
  };
  expect_within(run(two, kind, {{replica(0, 7)}, {replica(7, 10)}}), whole, 1e-6);
}

TEST(LossScale, FactorsAreWeightsOverTheirMeanAndBadCountsAreRefused) {
  EXPECT_EQ(LossScale::samples().factors({1, 3}), (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(LossScale::tokens().factors({0, 2}), (std::vector<double>{0, 2}));
  EXPECT_THROW(LossScale::tokens().factors({0, 0}), Error) << "nothing counts";
  EXPECT_EQ(LossScale::sum().factors({1, 1}), (std::vector<double>{1, 1}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(LossScale::tokens().combine({nan, 3, 5}, {0, 1, 3}), 4.5);
  EXPECT_EQ(LossScale::bad({nan, nan, 5}, {0, 1, 3}), 1);
  for (const double count : {-1.0, nan}) {
    const LossScale scale = LossScale::counted([&](const nn::Values&) { return count; });
    EXPECT_THROW(scale.weight(1.0, at::rand({1})), Error);
  }
}

// Detection: images have different numbers of boxes, whose first column is their image's number in
// the microbatch.  The loss is a mean over images.
Kind detecting() {
  Kind kind = kind_named("Mlp");
  kind.loss = [](const at::Tensor& outputs, const at::Tensor& boxes) {
    at::Tensor sum = at::zeros({});
    for (std::int64_t i = 0; i < outputs.size(0); ++i) {
      const at::Tensor own = boxes.select(1, 0).eq(i).nonzero().flatten();
      sum = sum + (boxes.index_select(0, own).slice(1, 1) - outputs[i]).pow(2).mean();
    }
    return sum / outputs.size(0);
  };
  return kind;
}

at::Tensor boxes_of(const std::vector<std::int64_t>& counts) {
  std::vector<at::Tensor> boxes;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const at::Tensor number = at::full({counts[i], 1}, static_cast<std::int64_t>(i), at::kFloat);
    boxes.push_back(at::cat({number, at::rand({counts[i], kWidth})}, 1));
  }
  return at::cat(boxes);
}

TEST(LossScale, SamplesAreThoseOfTheInputsHoweverManyRowsTargetsHave) {
  const Kind kind = detecting();
  const Microbatches first{.inputs = {at::rand({3, kWidth}), at::rand({1, kWidth})},
                           .targets = {boxes_of({1, 1, 2}), boxes_of({9})}};
  const Microbatches second{.inputs = {at::rand({1, kWidth}), at::rand({2, kWidth})},
                            .targets = {boxes_of({5}), boxes_of({1, 1})}};
  const auto plain = [&](const std::vector<Microbatches>& batches) {
    double loss = 0, images = 0;
    for (const Microbatches& batch : batches) {
      for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
        nn::Values values = batch.inputs[m];
        const auto count = static_cast<double>(values[0].size(0));
        for (std::size_t i = 0; i < kind.model.size(); ++i) {
          values =
              nn::build(kind.model[i], 1234, static_cast<std::int64_t>(i))->forward_values(values);
        }
        loss += count * kind.loss(values, batch.targets[m]).item<double>();
        images += count;
      }
    }
    return loss / images;
  };
  for (const char* schedule : {"1f1b", "zbv"}) {
    for (const mesh::Shape& mesh : {mesh::Shape{1, 1}, {2, 1}, {2, 2}}) {
      if (mesh.pipe == 1 && schedule == std::string("zbv")) continue;
      SCOPED_TRACE(str(schedule, " ", mesh::to_string(mesh)));
      const bool has_two = mesh.data == 2;
      const Result result =
          run({.mesh = mesh, .schedule = schedule, .microbatches = 2}, kind, {{first}, {second}});
      const std::vector<Microbatches> all =
          has_two ? std::vector{first, second} : std::vector{first};
      EXPECT_NEAR(result.report.loss, plain(all), 1e-6);
      EXPECT_NEAR(result.evaluation, plain(all), 1e-6);
    }
  }
  const Result in_turn = run({.mesh = {.pipe = 2}, .microbatches = 2}, kind, {{first, second}});
  EXPECT_NEAR(in_turn.report.loss, plain({first, second}), 1e-6);
}

// On every rank.
void expect_refused(const TrainerOptions& options, const Kind& kind,
                    const std::function<void(Trainer&)>& call, const std::string& words) {
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    try {
      call(trainer);
      ADD_FAILURE() << "not refused: " << words;
    } catch (const Error& error) {
      if (!trainer.rank_model().is_last_stage()) return;
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  });
}

TEST(LossScale, WhatStepCannotCutOrCountIsRefusedWithTheCallThatCan) {
  const Kind kind = detecting();
  const at::Tensor x = at::rand({4, kWidth}), boxes = boxes_of({5, 5, 4});
  for (const mesh::Shape& mesh : {mesh::Shape{1, 1}, {2, 1}, {1, 2}}) {
    const TrainerOptions options{.mesh = mesh, .microbatches = 2};
    for (const std::string words : {"4 samples in its inputs has targets with 14 rows",
                                    "step(std::vector<train::Microbatches>"}) {
      expect_refused(options, kind, [&](Trainer& trainer) { trainer.step(x, boxes); }, words);
      expect_refused(options, kind, [&](Trainer& trainer) { trainer.evaluate(x, boxes); }, words);
    }
  }
  EXPECT_EQ(samples_of_inputs(nn::Values{at::rand({3, 2}), at::rand({3})}), 3);
  EXPECT_EQ(samples_of_inputs(nn::Values{at::rand({3, 2}), at::rand({2, 9})}), -3);
  EXPECT_EQ(known_samples({3, 1}), (std::vector<double>{3, 1}));
  EXPECT_EQ(known_samples({-3, -3}), (std::vector<double>{3, 3})) << "all weigh alike";
  EXPECT_THROW(known_samples({-3, 2}), Error);
}

TEST(Accumulation, SeveralRunsAreOneOfAllTheirMicrobatches) {
  for (const char* name : {"Mlp", "GptWithDropout", "TiedGpt"}) {
    const Kind kind = kind_named(name);
    for (const mesh::Shape& mesh : {mesh::Shape{1, 1}, mesh::Shape{2, 1}, mesh::Shape{2, 2}}) {
      SCOPED_TRACE(str(name, " ", mesh::to_string(mesh)));
      std::vector<std::vector<Microbatches>> three, one;
      for (std::int32_t replica = 0; replica < mesh.data; ++replica) {
        const Microbatches all = cut(kind.batch(13, kSequence), 6);
        one.push_back({all});
        three.emplace_back();
        for (std::size_t first = 0; first < 6; first += 2) {
          three.back().push_back({{all.inputs[first], all.inputs[first + 1]},
                                  {all.targets[first], all.targets[first + 1]}});
        }
      }
      const Result together = run({.mesh = mesh, .microbatches = 6}, kind, one);
      const Result in_turn = run({.mesh = mesh, .microbatches = 2}, kind, three);
      EXPECT_EQ(in_turn.report.loss, together.report.loss);
      EXPECT_EQ(in_turn.report.grad_norm, together.report.grad_norm);
      for (const auto& [parameter, gradient] : together.gradients) {
        EXPECT_TRUE(same_bits(in_turn.gradients.at(parameter), gradient)) << parameter;
      }
    }
  }
}

// Between the gradients and the update, on every schedule: what follows is as if it had not been.
TEST(Evaluation, TouchesNothingAndKeepsNothing) {
  for (const char* name : {"BatchNorm", "GptWithDropout"}) {
    const Kind kind = kind_named(name);
    const Batch2 batch = kind.batch(8, kSequence), other = kind.batch(11, kSequence);
    for (const auto& generator : schedule::registry()) {
      if (generator.purpose == schedule::Purpose::Forward) continue;
      TrainerOptions options{.mesh = {.pipe = 2},
                             .schedule = std::string(generator.name),
                             .microbatches = 4,
                             .partition = partition::Uniform{}};
      const schedule::Sizes one{.ranks = 2, .stages_per_rank = 1, .microbatches = 4};
      options.stages_per_rank = generator.objection(one).empty() ? 1 : 2;
      SCOPED_TRACE(str(name, " ", options.schedule));
      comm::run_ranks(2, [&](comm::Communicator& communicator) {
        Trainer with(options, kind.model, kind.loss, communicator);
        Trainer without(options, kind.model, kind.loss, communicator);
        for (int step = 0; step < 2; ++step) {
          StepReport report = with.compute_gradients(batch.inputs, batch.targets);
          const double once = with.evaluate(other.inputs, other.targets);
          EXPECT_EQ(with.evaluate(other.inputs, other.targets), once) << "no random numbers";
          EXPECT_EQ(with.rank_model().activations().alive, 0);
          with.update(report);
          EXPECT_EQ(without.step(batch.inputs, batch.targets).loss, report.loss);
          for (std::size_t s = 0; s < with.rank_model().stages().size(); ++s) {
            const auto &a = with.rank_model().stages()[s].layers().state(),
                       &b = without.rank_model().stages()[s].layers().state();
            for (std::size_t i = 0; i < a.size(); ++i) {
              EXPECT_TRUE(same_bits(a[i].tensor, b[i].tensor)) << a[i].name;
            }
          }
        }
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace penstock::train
