// The same training on different layouts: the same bits, or as near as the order of sums allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>

#include "penstock/core/text.h"
#include "penstock/nn/gpt.h"
#include "penstock/runtime/run/data.h"
#include "penstock/train/trainer.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::train {
namespace {

using Parameters = std::map<std::string, at::Tensor>;

using testing_support::same_bits;

void copy_parameters(const Trainer& trainer, Parameters& into) {
  for (const auto& [name, tensor] : trainer.parameters()) into[name] = tensor.detach().clone();
}

constexpr std::int64_t kSteps = 50;
constexpr std::int64_t kMicrobatchSize = 2;
constexpr std::int64_t kGlobalBatch = 16;
constexpr std::int64_t kSequence = 16;

struct Trace {
  std::vector<StepReport> reports;
  std::vector<Parameters> parameters;  // Before the first step, then after each.
};

struct Layout {
  mesh::Shape mesh;
  const char* schedule = "1f1b";
  std::string program;
  std::int32_t stages_per_rank = 1;
};

class TrainerLayouts : public testing::Test {
 protected:
  static run::TextData text() {
    const testing_support::TemporaryFolder folder;
    std::ofstream file(folder.file("text"));
    for (int i = 0; i < 900; ++i) file << "line " << i << " of " << i * i << '\n';
    file.close();
    return run::TextData::load(folder.file("text"));
  }

  // What rank 0 reports and what the ranks of replica 0 hold; replica 1 must have the same bits.
  Trace train(const Layout& layout, const config::OptimizerConfig& optimizer) const {
    const std::int64_t samples = kGlobalBatch / layout.mesh.data;
    const TrainerOptions options{
        .mesh = layout.mesh,
        .schedule = layout.schedule,
        .program = layout.program,
        .stages_per_rank = layout.stages_per_rank,
        .microbatches = static_cast<std::int32_t>(samples / kMicrobatchSize),
        .optimizer = optimizer,
        .scheduler = {.type = config::SchedulerType::WarmupCosine, .warmup_num_steps = 5},
        .total_steps = kSteps,
        .gradient_clipping = kClipping,
        .seed = 77};
    const auto model =
        nn::gpt_layers({.layers = 4, .hidden = 16, .heads = 2, .sequence_length = kSequence});
    Trace trace{.parameters = std::vector<Parameters>(kSteps + 1)};
    std::vector<std::vector<Parameters>> replicas(2, trace.parameters);
    std::mutex mutex;
    const auto body = [&](comm::Communicator& communicator) {
      Trainer trainer(options, model, nn::next_byte_loss, communicator);
      const std::int32_t replica = trainer.layout().mesh.coordinate(communicator.rank()).data;
      const auto remember = [&](std::int64_t step) {
        const std::lock_guard lock(mutex);
        copy_parameters(
            trainer, replicas[static_cast<std::size_t>(replica)][static_cast<std::size_t>(step)]);
      };
      remember(0);
      for (std::int64_t step = 1; step <= kSteps; ++step) {
        const run::Batch batch = data_.training(3, step, replica * samples, samples, kSequence);
        const StepReport report = trainer.step(batch.input, batch.target);
        if (communicator.rank().value == 0) trace.reports.push_back(report);
        remember(step);
      }
    };
    comm::run_ranks(layout.mesh.pipe * layout.mesh.data, body);
    trace.parameters = replicas[0];
    if (layout.mesh.data == 2) expect_same_parameters(replicas[0], replicas[1]);
    return trace;
  }

  // AdamW on one rank, which most cases compare with: trained once.
  const Trace& one_rank() const {
    static const Trace trace = train({.mesh = {1, 1}}, kAdamW);
    return trace;
  }

  static void expect_same_parameters(const std::vector<Parameters>& a,
                                     const std::vector<Parameters>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t step = 0; step < a.size(); ++step) {
      ASSERT_EQ(a[step].size(), b[step].size());
      for (const auto& [name, tensor] : a[step]) {
        ASSERT_TRUE(same_bits(tensor, b[step].at(name))) << name << " after step " << step;
      }
    }
  }

  void expect_same_bits(const Layout& layout, const Trace& reference) const {
    SCOPED_TRACE(str(mesh::to_string(layout.mesh), " ", layout.schedule, layout.program));
    const Trace trace = train(layout, kAdamW);
    for (std::size_t i = 0; i < kSteps; ++i) {
      ASSERT_EQ(trace.reports[i].loss, reference.reports[i].loss) << "step " << i + 1;
      ASSERT_EQ(trace.reports[i].grad_norm, reference.reports[i].grad_norm) << "step " << i + 1;
    }
    expect_same_parameters(trace.parameters, reference.parameters);
  }

  // The largest relative differences from `reference` over all steps.
  struct Distance {
    double loss = 0.0;
    double norm = 0.0;
    double model = 0.0;       // 2-norm of the difference over the 2-norm, all parameters as one.
    double parameter = 0.0;   // Largest difference in a tensor over its largest magnitude.
    double key_biases = 0.0;  // The same of the key biases alone, which are not in `parameter`.
    std::string worst;        // The tensor of `parameter`.
  };
  static Distance distance(const Trace& trace, const Trace& reference) {
    Distance far;
    for (std::size_t i = 0; i < kSteps; ++i) {
      const StepReport &a = trace.reports[i], &b = reference.reports[i];
      far.loss = std::max(far.loss, std::abs(a.loss - b.loss) / b.loss);
      far.norm = std::max(far.norm, std::abs(a.grad_norm - b.grad_norm) / b.grad_norm);
      double difference = 0.0, all = 0.0;
      for (const auto& [name, tensor] : trace.parameters[i + 1]) {
        const at::Tensor& other = reference.parameters[i + 1].at(name);
        difference += (tensor - other).pow(2).sum().item<double>();
        all += other.pow(2).sum().item<double>();
        const auto parts = other.chunk(3), differences = (tensor - other).abs().chunk(3);
        for (std::size_t part = 0; part < parts.size(); ++part) {
          const double relative = (differences[part].max() / other.abs().max()).item<double>();
          const bool of_keys = name.ends_with("attn.c_attn.bias") && part == 1;
          double& largest = of_keys ? far.key_biases : far.parameter;
          if (relative <= largest) continue;
          largest = relative;
          if (!of_keys) far.worst = name;
        }
      }
      far.model = std::max(far.model, std::sqrt(difference / all));
    }
    return far;
  }

  static constexpr double kClipping = 0.5;
  static inline const config::OptimizerConfig kAdamW{
      .lr = 3e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1};
  static inline const config::OptimizerConfig kSgd{
      .type = config::OptimizerType::Sgd, .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9};
  run::TextData data_ = text();
};

TEST_F(TrainerLayouts, TheReferenceLearnsWithClippingActive) {
  const Trace& one = one_rank();
  std::int64_t clipped = 0;
  for (const StepReport& report : one.reports) clipped += report.grad_norm > kClipping;
  EXPECT_GE(clipped, kSteps / 2);
  EXPECT_LT(one.reports.back().loss, 0.8 * one.reports.front().loss);
  expect_same_bits({{1, 1}, "gpipe"}, one);
}

TEST_F(TrainerLayouts, TwoStagesHaveTheBitsOfOneRankAtEveryStep) {
  expect_same_bits({{2, 1}, "gpipe"}, one_rank());
  expect_same_bits({{2, 1}, "1f1b"}, one_rank());
}

TEST_F(TrainerLayouts, FourStagesHaveTheBitsOfOneRankAtEveryStep) {
  expect_same_bits({{4, 1}, "gpipe"}, one_rank());
  expect_same_bits({{4, 1}, "1f1b"}, one_rank());
}

TEST_F(TrainerLayouts, SplitBackwardsHaveTheBitsOfOneRankAtEveryStep) {
  expect_same_bits({{4, 1}, "zb_h1"}, one_rank());
  expect_same_bits({{2, 1}, "zbv", "", 2}, one_rank());
}

TEST_F(TrainerLayouts, AProgramFromAFileHasTheBitsOfOneRankAtEveryStep) {
  // Four stages in a V on two ranks: rank 1 hands over to itself.
  const testing_support::TemporaryFolder folder;
  std::ofstream(folder.file("v.csv")) << "0F0,0F1,0F2,0F3,3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,0B0,0B1,"
                                         "0F4,0F5,0F6,0F7,0B2,0B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7,"
                                         "0B4,0B5,0B6,0B7\n"
                                         "1F0,2F0,1F1,2F1,1F2,2F2,1F3,2F3,2B0,1B0,2B1,1B1,2B2,1B2,"
                                         "2B3,1B3,1F4,2F4,1F5,2F5,1F6,2F6,1F7,2F7,2B4,1B4,2B5,1B5,"
                                         "2B6,1B6,2B7,1B7\n";
  expect_same_bits({{2, 1}, "", folder.file("v.csv")}, one_rank());
}

// Two replicas add (a + b) + (c + d) where one rank adds ((a + b) + c) + d, so gradients differ in
// their last bits and the runs drift apart.  The loss, the norm and the model as one vector stay
// within 1e-6.  AdamW divides each element of the gradient by its own size: single elements with
// small gradients differ by a little more.  Key biases do not change attention at all, so their
// gradient is rounding noise, about 1e-9, and AdamW makes steps of lr x noise / (noise + eps) of
// it.
TEST_F(TrainerLayouts, ReplicasAreWithinOneInAMillionOfOneRankAtEveryStep) {
  struct Bounds {
    config::OptimizerConfig optimizer;
    double parameter;
    double key_biases;
  };
  for (const Bounds& bounds : {Bounds{kAdamW, 5e-6, 1e-3}, Bounds{kSgd, 1e-6, 1e-6}}) {
    const Trace one = train({.mesh = {1, 1}}, bounds.optimizer);
    const Trace two = train({.mesh = {1, 2}}, bounds.optimizer);
    expect_same_parameters({two.parameters[0]}, {one.parameters[0]});  // Initial weights.
    const Distance far = distance(two, one);
    std::printf(
        "[ MEASURED ] loss %.2g, norm %.2g, model %.2g, parameter %.2g (%s), "
        "key biases %.2g\n",
        far.loss, far.norm, far.model, far.parameter, far.worst.c_str(), far.key_biases);
    EXPECT_LE(far.loss, 1e-6);
    EXPECT_LE(far.norm, 1e-6);
    EXPECT_LE(far.model, 1e-6);
    EXPECT_LE(far.parameter, bounds.parameter) << far.worst;
    EXPECT_LE(far.key_biases, bounds.key_biases);
    EXPECT_GT(far.model, 0.0) << "one rank adds in another order";
  }
}

TEST_F(TrainerLayouts, StagesDoNotChangeABitOfWhatReplicasCompute) {
  const Trace replicas = train({.mesh = {1, 2}}, kAdamW);
  expect_same_bits({{2, 2}, "1f1b"}, replicas);
  expect_same_bits({{2, 2}, "zbv", "", 2}, replicas);
}

}  // namespace
}  // namespace penstock::train
