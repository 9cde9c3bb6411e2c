// A checkpoint that could not be read left behind what had been read of it: a rank that had found
// its own shard whole kept the changed program of a checkpoint that was then passed over.  The
// others had no program to change to, and every restart hung.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/runtime/saving/run_state.h"
#include "penstock/runtime/train/training_state.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/choosing.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using saving::Checkpoints;
namespace fs = std::filesystem;
using testing_support::message_of;
using testing_support::same_bits;
using testing_support::TemporaryFolder;

constexpr std::int64_t kSamples = 8;

TrainerOptions options() {
  return {.mesh = {.pipe = 2},
          .schedule = "gpipe",
          .microbatches = 4,
          .partition = partition::Uniform{},
          .precision = {.type = at::kHalf, .gradient_scale = {.enabled = true}},
          .zero = {.stage = ZeroStage::OptimizerStates}};
}

schedule::Schedule other_program() {
  return lower::training_program({.schedule = "1f1b", .ranks = 2, .microbatches = 4}).schedule();
}

struct State {
  std::map<std::pair<std::string, std::string>, at::Tensor> tensors;
  std::int64_t steps = 0, skipped = 0;
  std::optional<update::GradientScale::State> scale;
  std::string program;
};

State state_here(Trainer& trainer) {
  State state{.steps = trainer.steps_taken(),
              .skipped = trainer.updates().skipped_steps(),
              .scale = trainer.updates().scale().state(),
              .program = trainer.program().saved()};
  for (const StatePiece& piece : state_of(trainer)) {
    state.tensors[{piece.name, piece.state}] = piece.values.clone();
  }
  return state;
}

void expect_same(const State& one, const State& other) {
  EXPECT_EQ(one.steps, other.steps);
  EXPECT_EQ(one.skipped, other.skipped);
  EXPECT_EQ(one.scale, other.scale);
  EXPECT_EQ(one.program, other.program);
  ASSERT_EQ(one.tensors.size(), other.tensors.size());
  for (const auto& [name, tensor] : one.tensors) {
    EXPECT_TRUE(same_bits(tensor, other.tensors.at(name))) << name.first << " " << name.second;
  }
}

using Body = std::function<void(Trainer&, Checkpoints&)>;

// On both ranks.
void with_trainer(const std::string& directory, const Body& body) {
  const Kind kind = kind_named("Mlp");
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(options(), kind.model, kind.loss, communicator);
    execute::Progress progress;
    Checkpoints checkpoints(trainer, communicator, progress, {.directory = directory}, {});
    body(trainer, checkpoints);
  });
}

// Two checkpoints; the run changes its program between them, and its gradients overflow.
void save_two(const std::string& directory) {
  const Batch2 batch = kind_named("Mlp").batch(kSamples, 1);
  with_trainer(directory, [&](Trainer& trainer, Checkpoints& checkpoints) {
    trainer.step(batch.inputs, batch.targets);
    checkpoints.save();
    trainer.program().change(other_program());
    trainer.updates().set_skipped_steps(3);
    trainer.updates().scale().go_on_from({.value = 4, .lives = 1, .clean_steps = 1});
    trainer.step(batch.inputs, batch.targets);
    checkpoints.save();
  });
}

void damage(const fs::path& shard) {
  const auto middle = static_cast<std::streamoff>(fs::file_size(shard) / 2);
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(middle);
  const char was = static_cast<char>(file.get());
  file.seekp(middle).put(static_cast<char>(was ^ 1));
  ASSERT_TRUE(file.flush());
}

std::string shard(int rank) { return str("shard-0000", rank, "-of-00002.safetensors"); }

TEST(UndoneAttempt, LeavesNothingOfTheCheckpointThatIsPassedOver) {
  for (const int damaged : {0, 1}) {
    SCOPED_TRACE(damaged);
    const TemporaryFolder folder;
    save_two(folder.path());
    State expected[2];
    const auto here = [](Trainer& trainer) { return trainer.rank_model().groups().place; };
    with_trainer(folder.path(), [&](Trainer& trainer, Checkpoints& checkpoints) {
      checkpoints.resume_from(folder.file("step-00000001"));
      expected[here(trainer)] = state_here(trainer);
    });
    damage(folder.file("step-00000002/" + shard(damaged)));
    with_trainer(folder.path(), [&](Trainer& trainer, Checkpoints& checkpoints) {
      const auto resumed = checkpoints.resume();
      ASSERT_TRUE(resumed);
      EXPECT_EQ(resumed->step, 1);
      EXPECT_EQ(resumed->passed_over.size(), 1U);
      EXPECT_EQ(trainer.program().saved(), "");
      expect_same(state_here(trainer), expected[here(trainer)]);
    });
  }
}

TEST(UndoneAttempt, LeavesTheTrainerAsItWasWhereNoneCanBeRead) {
  const TemporaryFolder folder;
  save_two(folder.path());
  damage(folder.file("step-00000001/" + shard(1)));
  std::ofstream(folder.file("step-00000002/manifest.json")) << "none";
  const Batch2 batch = kind_named("Mlp").batch(kSamples, 1);
  with_trainer(folder.path(), [&](Trainer& trainer, Checkpoints& checkpoints) {
    trainer.step(batch.inputs, batch.targets);
    const State before = state_here(trainer);
    EXPECT_NE(message_of([&] { checkpoints.resume(); }).find("can be read"), std::string::npos);
    expect_same(state_here(trainer), before);
  });
}

// A checkpoint without a program, a scale or skipped steps says that there are none.
TEST(UndoneAttempt, SetsWhatTheCheckpointDoesNotSay) {
  const TemporaryFolder folder;
  save_two(folder.path());
  with_trainer(folder.path(), [&](Trainer& trainer, Checkpoints& checkpoints) {
    checkpoints.resume_from(folder.file("step-00000002"));
    EXPECT_NE(trainer.program().saved(), "");
    EXPECT_EQ(trainer.updates().skipped_steps(), 3);
    checkpoints.resume_from(folder.file("step-00000001"));
    EXPECT_EQ(trainer.program().saved(), "");
    EXPECT_EQ(trainer.updates().skipped_steps(), 0);
    saving::set_values(trainer, saving::read_values({}));
    EXPECT_EQ(trainer.updates().scale().state(),
              update::GradientScale(options().precision.gradient_scale).state());
  });
}

}  // namespace
}  // namespace penstock::train
