// Every kind of model on every schedule: what one process computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::int64_t kSeed = 31;

struct Layout {
  std::string schedule;
  std::int32_t pipe = 1;
  std::int32_t stages_per_rank = 1;
  std::int32_t data = 1;
  std::int32_t microbatches = 4;
  stage::Checkpointing checkpointing = {};
};

std::string describe(const Layout& layout) {
  return str(layout.schedule, ", pipe ", layout.pipe, " x ", layout.stages_per_rank, ", data ",
             layout.data, ", microbatches ", layout.microbatches, ", recomputed every ",
             layout.checkpointing.interval, " ", layout.checkpointing.layers);
}

TrainerOptions options_of(const Layout& layout) {
  return {.mesh = {.pipe = layout.pipe, .data = layout.data},
          .schedule = layout.schedule,
          .stages_per_rank = layout.stages_per_rank,
          .microbatches = layout.microbatches,
          .partition = partition::Uniform{},
          .checkpointing = layout.checkpointing,
          .seed = kSeed};
}

// What a batch leaves: of all ranks, each tensor once.
struct Outcome {
  double loss = 0.0;
  double norm = 0.0;
  nn::Values outputs;       // Of an evaluation, after the gradients.
  double evaluation = 0.0;  // Its loss.
  Tensors gradients;
  Tensors buffers;
};

// Two samples a microbatch; then uneven ones, of other lengths, and the first sizes again.
std::vector<Batch2> batches_of(const Kind& kind, std::int32_t microbatches, std::int32_t replicas) {
  const std::int64_t even = 2 * microbatches * replicas;
  return {kind.batch(even, kSequence), kind.batch(even + replicas, kSequence / 2),
          kind.batch(even, kSequence)};
}

std::vector<Outcome> plain(const Kind& kind, const std::vector<Batch2>& batches,
                           std::int32_t microbatches, std::int32_t replicas) {
  PlainModel model(kind, kSeed);
  std::vector<Outcome> outcomes;
  for (const Batch2& batch : batches) {
    model.drop_gradients();
    Outcome outcome;
    const auto samples = static_cast<double>(batch.inputs[0].size(0));
    const auto over_microbatches = [&](const auto& visit) {
      for (std::int32_t r = 0; r < replicas; ++r) {
        const auto inputs = split(part(batch.inputs, r, replicas), microbatches);
        const auto targets = split(part(batch.targets, r, replicas), microbatches);
        for (std::size_t m = 0; m < inputs.size(); ++m) {
          visit(inputs[m], targets[m], static_cast<double>(inputs[m][0].size(0)),
                static_cast<std::int64_t>(m) + r * microbatches);
        }
      }
    };
    over_microbatches([&](const auto& inputs, const auto& targets, double weight, auto number) {
      const at::Tensor loss = model.add(inputs, targets, /*step=*/1, number, weight / samples);
      outcome.loss += weight * loss.template item<double>();
    });
    over_microbatches([&](const auto& inputs, const auto& targets, double weight, auto) {
      outcome.evaluation +=
          weight * kind.loss(model.infer(inputs), targets).template item<double>();
    });
    outcome.loss /= samples;
    outcome.evaluation /= samples;
    outcome.outputs = model.infer(part(batch.inputs, 0, replicas));
    outcome.gradients = model.gradients();
    for (auto& [name, gradient] : outcome.gradients) {
      if (gradient.defined()) gradient = gradient.clone();
    }
    for (const auto& [name, buffer] : model.buffers()) outcome.buffers[name] = buffer.clone();
    outcomes.push_back(outcome);
  }
  return outcomes;
}

std::vector<Outcome> trained(const Kind& kind, const Layout& layout,
                             const std::vector<Batch2>& batches) {
  std::vector<Outcome> outcomes(batches.size());
  std::mutex mutex;
  comm::run_ranks(layout.pipe * layout.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options_of(layout), kind.model, kind.loss, communicator);
    const std::int32_t replica = trainer.layout().mesh.coordinate(communicator.rank()).data;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      const nn::Values inputs = part(batches[b].inputs, replica, layout.data);
      const nn::Values targets = part(batches[b].targets, replica, layout.data);
      trainer.zero_grad();
      const StepReport report = trainer.compute_gradients(inputs, targets);
      const double evaluation = trainer.evaluate(inputs, targets);
      const nn::Values outputs = trainer.infer(inputs);
      EXPECT_EQ(trainer.rank_model().activations().alive, 0);
      const std::lock_guard lock(mutex);
      Outcome& outcome = outcomes[b];
      outcome.loss = report.loss;
      outcome.norm = report.grad_norm;
      outcome.evaluation = evaluation;
      if (replica == 0 && trainer.rank_model().is_last_stage()) outcome.outputs = outputs;
      for (const auto& [name, parameter] : trainer.parameters()) {
        const at::Tensor gradient =
            parameter.grad().defined() ? parameter.grad().clone() : at::Tensor();
        const auto [other, is_new] = outcome.gradients.emplace(name, gradient);
        EXPECT_TRUE(is_new || same_bits(other->second, gradient)) << name << " of two ranks";
      }
      for (const stage::Stage& stage : trainer.rank_model().stages()) {
        for (const auto& [name, tensor] : stage.layers().state()) {
          if (tensor.requires_grad()) continue;
          const auto [other, is_new] = outcome.buffers.emplace(name, tensor.clone());
          EXPECT_TRUE(is_new || same_bits(other->second, tensor)) << name << " of two replicas";
        }
      }
    }
  });
  return outcomes;
}

void expect_near(const at::Tensor& got, const at::Tensor& expected, double bound,
                 const std::string& name) {
  if (bound == 0) {
    EXPECT_TRUE(same_bits(got, expected)) << name;
    return;
  }
  ASSERT_EQ(got.defined(), expected.defined()) << name;
  if (!got.defined()) return;
  EXPECT_LE((got - expected).abs().max().item<double>(),
            bound * expected.abs().max().item<double>())
      << name;
}

void expect_plain(const Kind& kind, const Layout& layout, const std::vector<Batch2>& batches,
                  const std::vector<Outcome>& expected, double bound) {
  SCOPED_TRACE(str(kind.name, " on ", describe(layout)));
  const auto got = trained(kind, layout, batches);
  for (std::size_t b = 0; b < batches.size(); ++b) {
    SCOPED_TRACE(str("batch ", b));
    EXPECT_EQ(got[b].loss, expected[b].loss);
    EXPECT_EQ(got[b].evaluation, expected[b].evaluation);
    ASSERT_EQ(got[b].outputs.size(), expected[b].outputs.size());
    for (std::size_t i = 0; i < expected[b].outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(got[b].outputs[i], expected[b].outputs[i])) << "output " << i;
    }
    ASSERT_EQ(got[b].gradients.size(), expected[b].gradients.size());
    double squares = 0.0;
    for (const auto& [name, gradient] : expected[b].gradients) {
      expect_near(got[b].gradients.at(name), gradient, bound, name);
      if (gradient.defined()) squares += gradient.to(at::kDouble).pow(2).sum().item<double>();
    }
    EXPECT_NEAR(got[b].norm, std::sqrt(squares), 1e-6 * std::sqrt(squares)) << "each once";
    ASSERT_EQ(got[b].buffers.size(), expected[b].buffers.size());
    for (const auto& [name, buffer] : expected[b].buffers) {
      EXPECT_TRUE(same_bits(got[b].buffers.at(name), buffer)) << name;
    }
    if (testing::Test::HasFailure()) return;
  }
}

void expect_plain(const Kind& kind, const Layout& layout, double bound = 0.0) {
  const auto batches = batches_of(kind, layout.microbatches, layout.data);
  expect_plain(kind, layout, batches, plain(kind, batches, layout.microbatches, layout.data),
               bound);
}

// Where microbatches are added in their order, gradients have one process's bits.
double bound_of(const schedule::Generator& generator) {
  return generator.backwards == schedule::BackwardOrder::Rising ? 0.0 : 1e-6;
}

class Models : public testing::TestWithParam<std::string> {
 protected:
  Kind kind_ = kind_named(GetParam());
};

TEST_P(Models, EveryScheduleGivesWhatOneProcessGives) {
  int programs = 0;
  for (const std::int32_t microbatches : {4, 8}) {
    const auto batches = batches_of(kind_, microbatches, 1);
    const auto expected = plain(kind_, batches, microbatches, 1);
    for (const auto& generator : schedule::registry()) {
      if (generator.purpose == schedule::Purpose::Forward) continue;
      for (const std::int32_t ranks : {2, 4}) {
        for (const std::int32_t stages_per_rank : {1, 2}) {
          const schedule::Sizes sizes{
              .ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = microbatches};
          if (!generator.objection(sizes).empty()) continue;
          const Layout layout{.schedule = std::string(generator.name),
                              .pipe = ranks,
                              .stages_per_rank = stages_per_rank,
                              .microbatches = microbatches};
          expect_plain(kind_, layout, batches, expected, bound_of(generator));
          ++programs;
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GE(programs, 2 * (std::ssize(schedule::registry()) - 1));
  RecordProperty("programs", programs);
}

TEST_P(Models, OneRankGivesWhatOneProcessGives) { expect_plain(kind_, {.schedule = "1f1b"}); }

TEST_P(Models, ReplicasTimesStagesGiveWhatOneProcessGives) {
  // Each replica normalises with statistics of its own: see BatchNorm.* below.
  if (GetParam() == "BatchNorm") GTEST_SKIP() << "BatchNorm.* below say what it gives";
  expect_plain(kind_, {.schedule = "gpipe", .data = 2}, 1e-6);
  expect_plain(kind_, {.schedule = "1f1b", .pipe = 2, .data = 2}, 1e-6);
  expect_plain(kind_, {.schedule = "zbv", .pipe = 2, .stages_per_rank = 2, .data = 2}, 1e-6);
}

TEST_P(Models, RecomputedActivationsChangeNoBit) {
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    for (const std::int64_t interval : {1, 3, 100}) {
      expect_plain(kind_,
                   {.schedule = schedule, .pipe = 2, .checkpointing = {.interval = interval}});
    }
  }
  expect_plain(
      kind_, {.schedule = "zbv",
              .pipe = 2,
              .stages_per_rank = 2,
              .checkpointing = {.interval = 2, .layers = "Block|Linear|Gates|Dropout|Norm|Joins"}});
}

INSTANTIATE_TEST_SUITE_P(Kinds, Models,
                         testing::Values("Mlp", "Gpt", "TiedGpt", "GptWithDropout", "Skips", "Ties",
                                         "BatchNorm", "Dropout", "TorchsDropout", "MixedTypes"),
                         [](const auto& kind) { return kind.param; });

TEST(BatchNorm, ReplicasHaveTheBuffersOfTheFirst) {
  const Kind kind = kind_named("BatchNorm");
  const auto batches = batches_of(kind, 4, 2);
  // trained() compares the replicas; the first one sees what it would see alone.
  const auto together = trained(kind, {.schedule = "1f1b", .pipe = 2, .data = 2}, batches);
  std::vector<Batch2> firsts;
  for (const Batch2& batch : batches) {
    firsts.push_back({part(batch.inputs, 0, 2), part(batch.targets, 0, 2)});
  }
  const auto alone = trained(kind, {.schedule = "1f1b", .pipe = 2}, firsts);
  for (std::size_t b = 0; b < batches.size(); ++b) {
    ASSERT_EQ(together[b].buffers.size(), 6u);
    for (const auto& [name, buffer] : alone[b].buffers) {
      EXPECT_TRUE(same_bits(together[b].buffers.at(name), buffer)) << name;
    }
  }
}

}  // namespace
}  // namespace penstock::train
