// Tied layers: one weight, wherever its layers are.
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <set>

#include "penstock/core/text.h"
#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;
using Tensors = std::map<std::string, at::Tensor>;

struct Layout {
  const char* schedule;
  std::int32_t pipe = 1;
  std::int32_t stages_per_rank = 1;
  std::int32_t data = 1;
};

constexpr std::int64_t kSteps = 6;
constexpr std::int32_t kMicrobatches = 4;

struct Trained {
  std::vector<StepReport> reports;
  Tensors parameters;
  std::vector<std::string> saved;  // Names, over all ranks of the first replica.
};

// AdamW with clipping; every copy of a parameter on any rank must have the bits of all others.
Trained train(const Kind& kind, const Layout& layout, const std::vector<Batch2>& batches) {
  Trained trained;
  std::mutex mutex;
  const TrainerOptions options{.mesh = {.pipe = layout.pipe, .data = layout.data},
                               .schedule = layout.schedule,
                               .stages_per_rank = layout.stages_per_rank,
                               .microbatches = kMicrobatches,
                               .partition = partition::Uniform{},
                               .optimizer = {.lr = 0.01, .weight_decay = 0.1},
                               .gradient_clipping = 0.02};
  comm::run_ranks(layout.pipe * layout.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    for (const Batch2& batch : batches) {
      const StepReport report = trainer.step(batch.inputs, batch.targets);
      if (communicator.rank().value == 0) trained.reports.push_back(report);
    }
    const std::lock_guard lock(mutex);
    for (const stage::Stage& stage : trainer.rank_model().stages()) {
      for (const auto& [name, tensor] : stage.parameters()) {
        const auto [other, is_new] = trained.parameters.emplace(name, tensor);
        EXPECT_TRUE(is_new || same_bits(other->second, tensor)) << name;
      }
      if (trainer.layout().mesh.coordinate(communicator.rank()).data != 0) continue;
      for (const auto& [name, tensor] : stage.layers().state()) trained.saved.push_back(name);
    }
  });
  return trained;
}

class TiedLayers : public testing::TestWithParam<const char*> {};

TEST_P(TiedLayers, StayEqualForeverAndHaveTheBitsOfOneRank) {
  const Kind kind = kind_named(GetParam());
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(8, kSequence));
  const Trained one = train(kind, {"1f1b"}, batches);
  int clipped = 0;
  for (const StepReport& report : one.reports) clipped += report.grad_norm > 0.02;
  EXPECT_GE(clipped, 3);
  const std::set<std::string> once(one.saved.begin(), one.saved.end());
  for (const Layout& layout : {Layout{"gpipe", 2}, Layout{"1f1b", 4}, Layout{"zb_h1", 2},
                               Layout{"interleaved_1f1b", 2, 2}, Layout{"zbv", 2, 2}}) {
    SCOPED_TRACE(str(layout.schedule, " ", layout.pipe));
    const Trained other = train(kind, layout, batches);
    EXPECT_EQ(other.saved.size(), once.size()) << "a parameter is saved by one rank";
    for (std::size_t i = 0; i < one.reports.size(); ++i) {
      EXPECT_EQ(other.reports[i].loss, one.reports[i].loss);
      EXPECT_EQ(other.reports[i].grad_norm, one.reports[i].grad_norm);
    }
    for (const auto& [name, tensor] : one.parameters) {
      EXPECT_TRUE(same_bits(other.parameters.at(name), tensor)) << name;
    }
  }
}

TEST_P(TiedLayers, StayEqualOnReplicasToo) {
  const Kind kind = kind_named(GetParam());
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(8, kSequence));
  const Trained replicas = train(kind, {.schedule = "gpipe", .data = 2}, batches);
  for (const Layout& layout : {Layout{"1f1b", 2, 1, 2}, Layout{"zbv", 2, 2, 2}}) {
    const Trained other = train(kind, layout, batches);
    for (const auto& [name, tensor] : replicas.parameters) {
      EXPECT_TRUE(same_bits(other.parameters.at(name), tensor)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TiedLayers, testing::Values("Ties", "TiedGpt"),
                         [](const auto& kind) { return kind.param; });

// One Linear that is used twice, in torch: it adds the two gradients of each microbatch, and here
// each layer adds those of its microbatches, so the last bits may differ.
TEST(TiedLayersAreOneWeight, AsInAPlainModelWithinOneInAMillion) {
  const Kind kind = kind_named("Ties");
  const Batch2 batch = kind.batch(8, 0);
  std::vector<std::shared_ptr<nn::Layer>> layers;
  for (std::size_t i = 0; i < kind.model.size(); ++i) {
    layers.push_back(nn::build(kind.model[i], 1234, static_cast<std::int64_t>(i)));
  }
  const auto first = layers[0]->named_parameters(), middle = layers[2]->named_parameters();
  const auto inputs = split(batch.inputs, kMicrobatches),
             targets = split(batch.targets, kMicrobatches);
  double norm = 0.0;
  std::atomic<int> compared = 0;
  for (std::size_t m = 0; m < inputs.size(); ++m) {
    const auto linear = [&](const at::Tensor& x, const at::Tensor& weight) {
      return at::linear(x, weight, first["bias"]);
    };
    nn::Values x = layers[1]->forward_values(linear(inputs[m][0], first["weight"]));
    x = layers[3]->forward_values(linear(x[0], middle["weight"]));
    for (const std::size_t i : {1, 5, 6}) x = layers[i]->forward_values(x);
    torch::autograd::backward({squares(linear(x[0], first["weight"]), targets[m][0]) / 4}, {});
  }
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer({.mesh = {.pipe = 2}, .microbatches = kMicrobatches}, kind.model, kind.loss,
                    communicator);
    const StepReport report = trainer.compute_gradients(batch.inputs, batch.targets);
    const auto expect_equal = [&](const std::string& name, const at::Tensor& expected) {
      for (const auto& [own, tensor] : trainer.parameters()) {
        if (own != name) continue;
        ++compared;
        EXPECT_LE((tensor.grad() - expected).abs().max().item<double>(),
                  1e-6 * expected.abs().max().item<double>())
            << name;
      }
    };
    expect_equal("first.weight", first["weight"].grad());
    expect_equal("first.bias", first["bias"].grad());
    expect_equal("x.fc.weight", layers[1]->named_parameters()["fc.weight"].grad());
    if (communicator.rank().value == 0) norm = report.grad_norm;
  });
  EXPECT_GE(compared, 3);
  double sum = 0.0;
  for (const std::size_t i : {0, 1, 2, 3, 5, 6}) {
    for (const auto& parameter : layers[i]->named_parameters()) {
      if (i == 2 && parameter.key() == "bias") continue;
      sum += parameter.value().grad().to(at::kDouble).pow(2).sum().item<double>();
    }
  }
  EXPECT_NEAR(norm, std::sqrt(sum), 1e-6 * std::sqrt(sum)) << "a tied parameter counts once";
}

}  // namespace
}  // namespace penstock::train
