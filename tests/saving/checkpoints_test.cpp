// A run that is saved and resumed has the bits of one that never stopped; in another layout, too,
// where its own steps have.
#include "penstock/saving/checkpoints.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/train/training_state.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/sweep.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/choosing.h"
#include "tests/train/model_kinds.h"

namespace penstock::saving {
namespace {

using namespace train;
namespace fs = std::filesystem;
using testing_support::message_of;
using testing_support::same_bits;
using testing_support::TemporaryFolder;

constexpr std::int64_t kSamples = 8;         // Of a step.
constexpr std::int64_t kMicrobatch = 2;      // Samples of a microbatch, in every layout.
constexpr std::int64_t kBucketBytes = 6000;  // Several buckets a stage.
constexpr int kSaved = 3;                    // Steps before the checkpoint, and after it.

struct Layout {
  const char* schedule = "1f1b";
  std::int32_t pipe = 1;
  std::int32_t data = 1;
  ZeroStage zero = ZeroStage::Off;
};

std::string name_of(const Layout& layout) {
  return str(layout.schedule, "_", layout.pipe, "x", layout.data, "_zero",
             static_cast<int>(layout.zero));
}

// Whatever a checkpoint may be written by and read by, as far as 4 ranks go.
const std::vector<Layout> kLayouts = {
    {"1f1b", 1, 1, ZeroStage::Off},
    {"1f1b", 2, 1, ZeroStage::Off},
    {"zbv", 2, 1, ZeroStage::Off},
    {"1f1b", 4, 1, ZeroStage::Off},
    {"1f1b", 1, 2, ZeroStage::Off},
    {"1f1b", 1, 2, ZeroStage::OptimizerStates},
    {"1f1b", 1, 2, ZeroStage::Gradients},
    {"1f1b", 1, 2, ZeroStage::Parameters},
    {"1f1b", 2, 2, ZeroStage::OptimizerStates},
    {"zbv", 2, 2, ZeroStage::Parameters},
    {"1f1b", 2, 2, ZeroStage::Off},
    {"1f1b", 1, 4, ZeroStage::Parameters},
};

TrainerOptions options_of(const Layout& layout, at::ScalarType type = at::kFloat) {
  return {.mesh = {.pipe = layout.pipe, .data = layout.data},
          .schedule = layout.schedule,
          .microbatches = static_cast<std::int32_t>(kSamples / kMicrobatch / layout.data),
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1},
          .scheduler = {.type = config::SchedulerType::WarmupCosine, .warmup_num_steps = 4},
          .total_steps = 4 * kSaved,
          .gradient_clipping = 0.5,
          .precision = {.type = type, .gradient_scale = {.enabled = type == at::kHalf}},
          .zero = {.stage = layout.zero, .bucket_bytes = kBucketBytes}};
}

std::vector<Batch2> batches_of(const Kind& kind, int steps) {
  std::vector<Batch2> batches;
  for (int i = 0; i < steps; ++i) batches.push_back(kind.batch(kSamples, kSequence));
  return batches;
}

using Whole = std::map<std::pair<std::string, std::string>, at::Tensor>;  // By name and state.

struct Outcome {
  std::vector<double> losses;  // With the gradient norms, of every step.
  Whole state;                 // At the end, as all ranks together have it.
  std::optional<Resumed> resumed;
  std::int64_t skipped = 0;
};

// Adds this rank's elements to what others have.
void gather_into(Whole& all, Trainer& trainer) {
  const torch::NoGradGuard no_grad;
  for (const StatePiece& piece : state_of(trainer)) {
    auto [known, is_new] = all.try_emplace({piece.name, piece.state});
    if (is_new) {
      known->second = at::full(piece.shape, -7, piece.values.options().requires_grad(false));
    }
    known->second.flatten()
        .slice(0, piece.first, piece.first + piece.values.numel())
        .copy_(piece.values.flatten());
  }
}

struct Course {
  int first = 0;  // Of the batches.
  int end = 0;
  std::string resume;  // A directory, or empty.
  std::string save;    // Likewise: after `saves` steps each.
  int save_every = 1 << 20;
  bool is_asynchronous = false;
  checkpoint::Keep keep = {};
};

Outcome run(const TrainerOptions& options, const Kind& kind, const std::vector<Batch2>& batches,
            const Course& course) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    execute::Progress progress;
    std::optional<Resumed> resumed;
    if (!course.resume.empty()) {
      Checkpoints reads(trainer, communicator, progress, {.directory = course.resume}, {});
      resumed = reads.resume();
    }
    Checkpoints writes(trainer, communicator, progress,
                       {.directory = course.save,
                        .keep = course.keep,
                        .is_asynchronous = course.is_asynchronous,
                        .facts = {{"written by", "a test"}}},
                       {});
    const auto replica = static_cast<std::size_t>(trainer.rank_model().groups().other_samples.here);
    for (int i = course.first; i < course.end; ++i) {
      const Batch2& batch = batches[static_cast<std::size_t>(i)];
      const auto mine = [&](const nn::Values& values) {
        nn::Values mine_of;
        for (const at::Tensor& value : values) {
          mine_of.push_back(value.chunk(options.mesh.data)[replica]);
        }
        return mine_of;
      };
      const StepReport report = trainer.step(mine(batch.inputs), mine(batch.targets));
      EXPECT_EQ(report.step, i + 1);
      writes.after(report);
      if (!course.save.empty() && (i + 1 - course.first) % course.save_every == 0) writes.save();
      if (communicator.rank().value != 0) continue;
      outcome.losses.push_back(report.loss);
      outcome.losses.push_back(report.grad_norm);
    }
    writes.finish();
    const std::lock_guard lock(mutex);
    gather_into(outcome.state, trainer);
    outcome.skipped = trainer.updates().skipped_steps();
    if (communicator.rank().value == 0) outcome.resumed = resumed;
  });
  return outcome;
}

testing::AssertionResult same_state(const Whole& a, const Whole& b) {
  if (a.size() != b.size()) {
    return testing::AssertionFailure() << a.size() << " and " << b.size() << " tensors";
  }
  for (const auto& [key, tensor] : a) {
    const auto other = b.find(key);
    if (other != b.end() && same_bits(tensor, other->second)) continue;
    return testing::AssertionFailure() << key.second << " of " << key.first << " differs";
  }
  return testing::AssertionSuccess();
}

// `resumed` has the last steps of `whole`: bit for bit, or nearly so.
void expect_same_course(const Outcome& whole, const Outcome& resumed, bool has_bits) {
  const std::size_t skipped = whole.losses.size() - resumed.losses.size();
  for (std::size_t i = 0; i < resumed.losses.size(); ++i) {
    const double expected = whole.losses[skipped + i];
    if (has_bits) {
      EXPECT_EQ(resumed.losses[i], expected) << i;
    } else {
      EXPECT_NEAR(resumed.losses[i], expected, 1e-4 * std::abs(expected)) << i;
    }
  }
  if (has_bits) {
    EXPECT_TRUE(same_state(whole.state, resumed.state));
  }
}

class Checkpoint : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(Checkpoint, GoesOnAsIfTheRunHadNeverStopped) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    const std::string directory = folder_.file(name_of(layout));
    const Kind kind = kind_named("GptWithDropout");
    const auto batches = batches_of(kind, 2 * kSaved);
    const TrainerOptions options = options_of(layout);
    const Outcome whole = run(options, kind, batches, {.end = 2 * kSaved});
    run(options, kind, batches, {.end = kSaved, .save = directory, .save_every = kSaved});
    const Outcome resumed =
        run(options, kind, batches, {.first = kSaved, .end = 2 * kSaved, .resume = directory});
    ASSERT_TRUE(resumed.resumed);
    EXPECT_EQ(resumed.resumed->step, kSaved);
    EXPECT_EQ(resumed.resumed->facts, (checkpoint::Texts{{"written by", "a test"}}));
    expect_same_course(whole, resumed, /*has_bits=*/true);
  }
}

class CheckpointKinds : public testing::TestWithParam<const char*> {};

// Buffers, ties and skips; two stages, one replica and two.
TEST_P(CheckpointKinds, GoOnAsIfTheRunHadNeverStopped) {
  const Kind kind = kind_named(GetParam());
  const auto batches = batches_of(kind, 2 * kSaved);
  for (const Layout& layout : {Layout{"1f1b", 2, 1}, {"zbv", 2, 2, ZeroStage::Gradients}}) {
    SCOPED_TRACE(name_of(layout));
    const TemporaryFolder folder;
    const TrainerOptions options = options_of(layout);
    const Outcome whole = run(options, kind, batches, {.end = 2 * kSaved});
    run(options, kind, batches, {.end = kSaved, .save = folder.path(), .save_every = kSaved});
    const Outcome resumed =
        run(options, kind, batches, {.first = kSaved, .end = 2 * kSaved, .resume = folder.path()});
    expect_same_course(whole, resumed, /*has_bits=*/true);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CheckpointKinds,
                         testing::Values("TiedGpt", "BatchNorm", "Skips", "Ties", "MixedTypes",
                                         "TrainedLoss"),
                         [](const auto& each) { return std::string(each.param); });

// From which layout, to which: each to two others, and all pairs in the long tier.
class CheckpointLayouts : public testing::TestWithParam<std::size_t> {};

TEST_P(CheckpointLayouts, IsReadByAnyOther) {
  const Layout& from = kLayouts[GetParam()];
  const Kind kind = kind_named("TiedGpt");
  const auto batches = batches_of(kind, 2 * kSaved);
  const TemporaryFolder folder;
  const Outcome saved = run(options_of(from), kind, batches,
                            {.end = kSaved, .save = folder.path(), .save_every = kSaved});
  const Outcome whole = run(options_of(from), kind, batches, {.end = 2 * kSaved});
  const bool all = testing_support::runs_whole_sweeps();
  for (std::size_t i = 1; i < (all ? kLayouts.size() : 3); ++i) {
    const Layout& to = kLayouts[(GetParam() + i * (all ? 1 : 5)) % kLayouts.size()];
    SCOPED_TRACE(str(name_of(from), " to ", name_of(to)));
    const Outcome read = run(options_of(to), kind, batches,
                             {.first = kSaved, .end = kSaved, .resume = folder.path()});
    EXPECT_TRUE(same_state(saved.state, read.state));
    const Outcome resumed = run(options_of(to), kind, batches,
                                {.first = kSaved, .end = 2 * kSaved, .resume = folder.path()});
    expect_same_course(whole, resumed, from.data == to.data);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CheckpointLayouts,
                         testing::Range(std::size_t{0}, kLayouts.size()),
                         [](const auto& each) { return name_of(kLayouts[each.param]); });

// They are of the last stage, whichever that is.
TEST(CheckpointLosses, WithParametersAreReadByAnyOtherLayout) {
  const Kind kind = kind_named("TrainedLoss");
  const auto batches = batches_of(kind, 2 * kSaved);
  const std::vector<Layout> layouts = {{"1f1b", 2, 1},
                                       {"1f1b", 1, 2, ZeroStage::Parameters},
                                       {"zbv", 2, 2, ZeroStage::OptimizerStates}};
  for (const Layout& from : layouts) {
    const TemporaryFolder folder;
    const Outcome saved = run(options_of(from), kind, batches,
                              {.end = kSaved, .save = folder.path(), .save_every = kSaved});
    const Outcome whole = run(options_of(from), kind, batches, {.end = 2 * kSaved});
    for (const Layout& to : layouts) {
      SCOPED_TRACE(str(name_of(from), " to ", name_of(to)));
      const Outcome read = run(options_of(to), kind, batches,
                               {.first = kSaved, .end = kSaved, .resume = folder.path()});
      EXPECT_TRUE(same_state(saved.state, read.state));
      const Outcome resumed = run(options_of(to), kind, batches,
                                  {.first = kSaved, .end = 2 * kSaved, .resume = folder.path()});
      expect_same_course(whole, resumed, from.data == to.data);
    }
  }
}

TEST_F(Checkpoint, GoesOnWithTheSameBitsOnMoreReplicasWithInvariantSums) {
  const Kind kind = kind_named("Gpt");
  const auto batches = batches_of(kind, 2 * kSaved);
  const auto invariant = [](const Layout& layout) {
    TrainerOptions options = options_of(layout);
    options.sums = GradientSums::Invariant;
    return options;
  };
  const Outcome whole = run(invariant({"1f1b", 1, 1}), kind, batches, {.end = 2 * kSaved});
  run(invariant({"1f1b", 1, 1}), kind, batches,
      {.end = kSaved, .save = folder_.path(), .save_every = kSaved});
  const Outcome resumed = run(invariant({"1f1b", 2, 2}), kind, batches,
                              {.first = kSaved, .end = 2 * kSaved, .resume = folder_.path()});
  expect_same_course(whole, resumed, /*has_bits=*/true);
}

TEST_F(Checkpoint, HasMastersAndTheGradientScaleOfShortTypes) {
  const Kind kind = kind_named("Gpt");
  const auto batches = batches_of(kind, 2 * kSaved);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    const std::string directory = folder_.file(c10::toString(type));
    const TrainerOptions options = options_of({"1f1b", 2, 2, ZeroStage::OptimizerStates}, type);
    const Outcome whole = run(options, kind, batches, {.end = 2 * kSaved});
    run(options, kind, batches, {.end = kSaved, .save = directory, .save_every = kSaved});
    const Outcome resumed =
        run(options, kind, batches, {.first = kSaved, .end = 2 * kSaved, .resume = directory});
    expect_same_course(whole, resumed, /*has_bits=*/true);
    EXPECT_EQ(resumed.skipped, whole.skipped);
    // Without masters the values are what the masters are.
    const Outcome as_float = run(options_of({"1f1b", 1, 1}), kind, batches,
                                 {.first = kSaved, .end = kSaved, .resume = directory});
    const Outcome as_short =
        run(options, kind, batches, {.first = kSaved, .end = kSaved, .resume = directory});
    EXPECT_TRUE(same_state(as_float.state, as_short.state));
  }
}

TEST_F(Checkpoint, OfAnotherOptimizerGivesWeightsAlone) {
  const Kind kind = kind_named("Mlp");
  const auto batches = batches_of(kind, 2);
  TrainerOptions sgd = options_of({"1f1b", 2, 1});
  sgd.optimizer = {.type = config::OptimizerType::Sgd, .lr = 0.1, .momentum = 0.9};
  run(sgd, kind, batches, {.end = 1, .save = folder_.file("c"), .save_every = 1});
  TrainerOptions adam = options_of({"1f1b", 2, 1});
  for (const bool in_file : {false, true}) {
    if (in_file) adam.offload.states = {offload::Place::File, folder_.path()};
    const Outcome read =
        run(adam, kind, batches, {.first = 1, .end = 2, .resume = folder_.file("c")});
    EXPECT_EQ(read.state.count({"0.fc1.weight", "momentum_buffer"}), 0U);
    for (const auto& [key, tensor] : read.state) {
      if (key.second == "step") {
        EXPECT_EQ(tensor.item<float>(), 1) << key.first;
      }
    }
  }
}

TEST_F(Checkpoint, IsTheSameWrittenBesideTheSteps) {
  const Kind kind = kind_named("Gpt");
  const auto batches = batches_of(kind, 2 * kSaved);
  const TrainerOptions options = options_of({"1f1b", 2, 2, ZeroStage::Parameters});
  const Outcome beside =
      run(options, kind, batches,
          {.end = 2 * kSaved, .save = folder_.file("a"), .save_every = 2, .is_asynchronous = true});
  const Outcome between =
      run(options, kind, batches, {.end = 2 * kSaved, .save = folder_.file("b"), .save_every = 2});
  expect_same_course(between, beside, /*has_bits=*/true);
  for (const std::int64_t step : {2, 4, 6}) {
    checkpoint::SavedCheckpoint one(checkpoint::folder_of(folder_.file("a"), step));
    checkpoint::SavedCheckpoint other(checkpoint::folder_of(folder_.file("b"), step));
    EXPECT_EQ(one.manifest(), other.manifest()) << step;
    one.verify();
  }
}

TEST_F(Checkpoint, KeepsTheNewest) {
  const Kind kind = kind_named("Mlp");
  run(options_of({"1f1b", 2, 1}), kind, batches_of(kind, 5),
      {.end = 5, .save = folder_.path(), .save_every = 1, .keep = {.last = 2, .every = 3}});
  EXPECT_EQ(folder_.names(),
            (std::vector<std::string>{"step-00000003", "step-00000004", "step-00000005"}));
}

TEST_F(Checkpoint, IsPassedOverWhenItIsDamaged) {
  const Kind kind = kind_named("Mlp");
  const auto batches = batches_of(kind, 6);
  const TrainerOptions options = options_of({"1f1b", 2, 1});
  const Outcome whole = run(options, kind, batches, {.end = 6});
  run(options, kind, batches, {.end = 4, .save = folder_.path(), .save_every = 2});
  const std::string shard = folder_.file("step-00000004/shard-00001-of-00002.safetensors");
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end).put('\x55');
  file.close();
  const Outcome resumed =
      run(options, kind, batches, {.first = 2, .end = 6, .resume = folder_.path()});
  ASSERT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.resumed->step, 2);
  ASSERT_EQ(resumed.resumed->passed_over.size(), 1U);
  EXPECT_NE(resumed.resumed->passed_over[0].find("shard-00001-of-00002.safetensors\" is damaged"),
            std::string::npos);
  expect_same_course(whole, resumed, /*has_bits=*/true);
  fs::remove(folder_.file("step-00000002/manifest.json"));
  const auto resume = [&] {
    run(options, kind, batches, {.first = 0, .end = 1, .resume = folder_.path()});
  };
  const std::string message = message_of(resume);
  EXPECT_NE(message.find("no checkpoint in"), std::string::npos) << message;
  EXPECT_NE(message.find("is damaged"), std::string::npos) << message;
}

TEST_F(Checkpoint, IsNoneInAnEmptyDirectory) {
  const Kind kind = kind_named("Mlp");
  const Outcome fresh = run(options_of({"1f1b", 2, 1}), kind, batches_of(kind, 1),
                            {.end = 1, .resume = folder_.file("none")});
  EXPECT_FALSE(fresh.resumed);
}

TEST_F(Checkpoint, OfAnotherModelIsRefusedByName) {
  const Kind kind = kind_named("Gpt");
  const auto batches = batches_of(kind, 1);
  run(options_of({"1f1b", 2, 1}), kind, batches,
      {.end = 1, .save = folder_.path(), .save_every = 1});
  const auto resume = [&](std::vector<nn::LayerSpec> layers) {
    Kind other = kind;
    other.model = std::move(layers);
    return message_of([&] {
      run(options_of({"1f1b", 2, 1}), other, batches, {.end = 1, .resume = folder_.path()});
    });
  };
  std::vector<nn::LayerSpec> layers = kind.model;
  layers.erase(layers.begin() + 3);
  EXPECT_NE(resume(layers).find("has tensors that the model does not have: \""), std::string::npos)
      << resume(layers);
  const Kind tied = kind_named("Mlp");
  EXPECT_NE(resume(tied.model).find("it is another model's"), std::string::npos)
      << resume(tied.model);
}

TEST_F(Checkpoint, ThatCannotBeWrittenLeavesTheRunAndOlderOnesAsTheyWere) {
  const Kind kind = kind_named("Mlp");
  const auto batches = batches_of(kind, 2);
  const TrainerOptions options = options_of({"1f1b", 2, 1});
  std::ofstream(folder_.file("file")) << "x";
  std::string message;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    execute::Progress progress;
    Checkpoints bad(trainer, communicator, progress, {.directory = folder_.file("file/x")}, {});
    Checkpoints good(trainer, communicator, progress, {.directory = folder_.file("good")}, {});
    good.save();
    const std::string said = message_of([&] { bad.save(); });
    if (communicator.rank().value == 1) message = said;
    trainer.step(batches[0].inputs, batches[0].targets);
    good.save();
  });
  EXPECT_NE(message.find("cannot make the directory"), std::string::npos) << message;
  EXPECT_EQ(checkpoint::checkpoints_in(folder_.file("good")).size(), 2U);
}

}  // namespace
}  // namespace penstock::saving
