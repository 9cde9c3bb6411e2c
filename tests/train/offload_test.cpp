// Optimizer states and parameters that are in files, and in memory only while they are used.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/support/message_of.h"
#include "tests/support/resident_bytes.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

using testing_support::resident_bytes;
using testing_support::TemporaryFolder;

constexpr std::int32_t kMicrobatches = 4;
constexpr std::array kStages = {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                ZeroStage::Parameters};

config::OptimizerConfig adamw() { return {.lr = 3e-3, .weight_decay = 0.1}; }
config::OptimizerConfig sgd() {
  return {.type = config::OptimizerType::Sgd, .lr = 0.1, .momentum = 0.9};
}

Precision short_type(at::ScalarType type) {
  Precision precision{.type = type};
  if (type == at::kHalf) precision.gradient_scale = {.enabled = true};
  return precision;
}

TrainerOptions options_of(ZeroStage stage, const Precision& precision = {},
                          const config::OptimizerConfig& optimizer = adamw()) {
  return {.mesh = {.pipe = 2, .data = 2},
          .microbatches = kMicrobatches,
          .partition = partition::Uniform{},
          .optimizer = optimizer,
          .gradient_clipping = 0.5,
          .precision = precision,
          .zero = {.stage = stage,
                   .bucket_bytes = 3000,
                   .limits = {.budget_bytes = 9000, .prefetch_bytes = 3000}}};
}

offload::Where in(const TemporaryFolder& folder) {
  return {.place = offload::Place::File, .folder = folder.path()};
}

// In runs of a few parameters.
TrainerOptions offloaded(TrainerOptions options, const TemporaryFolder& folder) {
  options.offload = {.states = in(folder), .elements_at_once = 500};
  return options;
}

std::vector<Batch2> batches_of(const Kind& kind, int steps) {
  std::vector<Batch2> batches;
  for (int i = 0; i < steps; ++i) batches.push_back(kind.batch(4 * kMicrobatches, kSequence));
  return batches;
}

struct Numbers {
  const char* name = "";
  Precision precision;
  config::OptimizerConfig optimizer;
};

class Offload : public testing::TestWithParam<Numbers> {};

TEST_P(Offload, HasTheBitsOfStatesInMemoryInEveryZeroStage) {
  const TemporaryFolder folder;
  for (const char* name : {"Gpt", "TiedGpt"}) {
    const Kind kind = kind_named(name);
    const auto batches = batches_of(kind, 4);
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE(str(name, ", stage ", static_cast<int>(stage)));
      const TrainerOptions options = options_of(stage, GetParam().precision, GetParam().optimizer);
      EXPECT_TRUE(
          same(train(offloaded(options, folder), kind, batches), train(options, kind, batches)));
    }
  }
}

// Beside states in memory, and beside those in a file.
TEST_P(Offload, HasTheBitsOfParametersInMemory) {
  const TemporaryFolder folder;
  for (const char* name : {"Gpt", "TiedGpt"}) {
    const Kind kind = kind_named(name);
    const auto batches = batches_of(kind, 4);
    TrainerOptions options =
        options_of(ZeroStage::Parameters, GetParam().precision, GetParam().optimizer);
    const Trained expected = train(options, kind, batches);
    for (const bool are_states_offloaded : {false, true}) {
      SCOPED_TRACE(str(name, are_states_offloaded ? ", states too" : ""));
      if (are_states_offloaded) options = offloaded(options, folder);
      options.offload.parameters = in(folder);
      EXPECT_TRUE(same(train(options, kind, batches), expected));
    }
  }
}

// Nothing is shared then, but parameters come and go all the same.
TEST_P(Offload, OfParametersOnOneDataRankHasTheBitsOfNoZero) {
  const TemporaryFolder folder;
  for (const char* schedule : {"1f1b", "zbv"}) {
    SCOPED_TRACE(schedule);
    const Kind kind = kind_named("TiedGpt");
    const auto batches = batches_of(kind, 4);
    TrainerOptions options =
        options_of(ZeroStage::Parameters, GetParam().precision, GetParam().optimizer);
    options.mesh.data = 1;
    options.schedule = schedule;
    const Trained expected = train(options, kind, batches);
    options.offload.parameters = in(folder);
    EXPECT_TRUE(same(train(options, kind, batches), expected));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Offload,
                         testing::Values(Numbers{"fp32", {}, adamw()},
                                         Numbers{"fp32_sgd", {}, sgd()},
                                         Numbers{"bf16", short_type(at::kBFloat16), adamw()},
                                         Numbers{"fp16", short_type(at::kHalf), adamw()},
                                         Numbers{"bf16_sgd", short_type(at::kBFloat16), sgd()}),
                         [](const auto& numbers) { return std::string(numbers.param.name); });

TEST(TrainerOffload, AFolderThatIsNotThereIsAnErrorOnAllRanksBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const Kind kind = kind_named("Mlp");
  TrainerOptions options = offloaded(options_of(ZeroStage::Off), folder);
  options.offload.states.folder = folder.file("none");
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    try {
      const Trainer trainer(options, kind.model, kind.loss, communicator);
      ADD_FAILURE() << "it was made";
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("optimizer states: cannot make a file in the folder"),
                std::string::npos)
          << error.message();
    }
  });
}

// Of a rank's pieces, which are one mapping, whatever has used them: a step, a validation, somebody
// who wants all.
TEST(TrainerOffload, NothingOfParametersInAFileStaysInMemory) {
  const TemporaryFolder folder;
  const Kind kind = kind_named("Gpt");
  const auto batches = batches_of(kind, 2);
  TrainerOptions options = options_of(ZeroStage::Parameters, short_type(at::kBFloat16));
  options.offload = {.parameters = in(folder), .elements_at_once = 500};
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const auto expect_away = [&](const char* after) {
      EXPECT_EQ(
          resident_bytes(trainer.rank_model().replicated().parts().all().front().tensor.data_ptr()),
          0)
          << after;
    };
    expect_away("construction");
    for (const Batch2& batch : batches) {
      trainer.step(batch.inputs[0].chunk(2)[0], batch.targets[0].chunk(2)[0]);
      expect_away("a step");
    }
    const Batch2& last = batches.back();
    trainer.evaluate(last.inputs[0].chunk(2)[0], last.targets[0].chunk(2)[0]);
    expect_away("a validation");
    const auto whole = trainer.rank_model().whole_parameters();
    expect_away("gathering");
    EXPECT_GT(trainer.offloaded_bytes(), 0);
  });
}

TEST(TrainerOffload, OfParametersIsRefusedWhereTheyAreAlwaysWhole) {
  const TemporaryFolder folder;
  const Kind kind = kind_named("Mlp");
  TrainerOptions options = options_of(ZeroStage::Gradients);
  options.offload.parameters = in(folder);
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    EXPECT_THROW(Trainer(options, kind.model, kind.loss, communicator), ConfigError);
  });
}

// The pieces' file, at the first stage that has no room.
TEST(TrainerOffload, AFolderOfParametersThatIsNotThereIsAnErrorOnAllRanks) {
  const TemporaryFolder folder;
  const Kind kind = kind_named("Mlp");
  TrainerOptions options = options_of(ZeroStage::Parameters);
  options.offload.parameters = in(folder);
  options.offload.parameters.folder = folder.file("none");
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    const std::string message =
        testing_support::message_of([&] { Trainer(options, kind.model, kind.loss, communicator); });
    EXPECT_NE(message.find("parameters: cannot make a file in the folder"), std::string::npos)
        << message;
  });
}

}  // namespace
}  // namespace penstock::train
