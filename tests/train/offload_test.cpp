// Optimizer states and parameters that are in files, and in memory only while they are used.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/train/offloaded_parts.h"
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

std::vector<Part> in_memory(const std::vector<at::Tensor>& tensors) {
  std::vector<Part> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back({.tensor = tensor});
  return parts;
}

// Eight parts of a mebibyte with two states each, in runs of two parts.
TEST(OffloadedParts, StatesAreInMemoryARunAtATime) {
  constexpr std::int64_t kElements = 1 << 18;
  constexpr std::int64_t kRunBytes = 2 * 2 * 4 * kElements;
  const TemporaryFolder folder;
  const std::vector<at::Tensor> parts(8, at::empty({kElements}));
  OffloadedParts states(in_memory(parts), in(folder), /*states_per_part=*/2);
  EXPECT_EQ(states.file_bytes(), 4 * kRunBytes);
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (int state = 0; state < 2; ++state) made.push_back(states.zeros_like(i, parts[i]));
  }
  const auto runs = part_runs(std::vector<std::int64_t>(parts.size(), kElements), 2 * kElements);
  for (int step = 1; step <= 3; ++step) {
    std::size_t updated = 0;
    states.in_turn(runs, [&](PartRun run) {
      for (std::size_t i = 2 * run.first; i < 2 * run.end; ++i, ++updated) made[i].add_(1);
      EXPECT_LE(resident_bytes(made[0].data_ptr()), 2 * kRunBytes);
    });
    EXPECT_EQ(updated, made.size());
    EXPECT_EQ(resident_bytes(made[0].data_ptr()), 0) << "after step " << step;
  }
  for (const at::Tensor& state : made) EXPECT_EQ(state.sum().item<double>(), 3.0 * kElements);
}

// Two files of four parts of a mebibyte, whose states are in memory.
TEST(OffloadedParts, PartsAreInMemoryARunAtATime) {
  constexpr std::int64_t kElements = 1 << 18;
  const TemporaryFolder folder;
  std::array files = {offload::MappedFile("first", folder.path(), 16 * kElements),
                      offload::MappedFile("second", folder.path(), 16 * kElements)};
  std::vector<Part> parts;
  for (std::int64_t i = 0; i < 8; ++i) {
    offload::MappedFile& file = files[static_cast<std::size_t>(i / 4)];
    const std::int64_t first = i % 4 * 4 * kElements;
    parts.push_back({.tensor = file.tensor(first, at::empty({kElements})), .file = &file});
  }
  OffloadedParts offloaded(parts, {}, /*states_per_part=*/2);
  EXPECT_EQ(offloaded.file_bytes(), 0);
  const at::Tensor state = offloaded.zeros_like(0, parts[0].tensor);
  EXPECT_EQ(state.count_nonzero().item<std::int64_t>(), 0);
  const auto resident = [&] {
    return resident_bytes(parts[0].tensor.data_ptr()) + resident_bytes(parts[4].tensor.data_ptr());
  };
  const auto runs = part_runs(std::vector<std::int64_t>(parts.size(), kElements), 3 * kElements);
  EXPECT_EQ(runs.size(), 3u) << "the second has parts of both files";
  for (int step = 1; step <= 3; ++step) {
    offloaded.in_turn(runs, [&](PartRun run) {
      for (std::size_t i = run.first; i < run.end; ++i) parts[i].tensor.add_(1);
      EXPECT_LE(resident(), 3 * 4 * kElements);
    });
    EXPECT_EQ(resident(), 0) << "after step " << step;
  }
  for (const Part& part : parts) EXPECT_EQ(part.tensor.sum().item<double>(), 3.0 * kElements);
}

TEST(OffloadedParts, MastersAreLetGoAsSoonAsTheyAreMade) {
  const TemporaryFolder folder;
  const std::vector<at::Tensor> parts(4, at::full({1 << 18}, 3, at::kBFloat16));
  OffloadedParts states(in_memory(parts), in(folder), /*states_per_part=*/2);
  EXPECT_EQ(states.file_bytes(), 4 * 3 * 4 * (1 << 18));
  const MasterWeights masters(parts, MastersPlace::Host, &states);
  EXPECT_EQ(resident_bytes(masters.tensors()[0].data_ptr()), 0);
  for (const at::Tensor& master : masters.tensors()) {
    EXPECT_EQ(master.scalar_type(), at::kFloat);
    EXPECT_EQ(master.sum().item<double>(), 3.0 * (1 << 18));
  }
}

// A run has more than so many elements only where one part has.
TEST(PartRuns, AreAsLongAsTheyMayBe) {
  const auto ends = [](const std::vector<std::int64_t>& sizes) {
    std::vector<std::size_t> found;
    for (const PartRun& run : part_runs(sizes, 8)) found.push_back(run.end);
    return found;
  };
  EXPECT_EQ(ends({3, 5, 1, 20, 4}), (std::vector<std::size_t>{2, 3, 4, 5}));
  EXPECT_EQ(ends({9}), (std::vector<std::size_t>{1}));
  EXPECT_TRUE(ends({}).empty());
}

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
      EXPECT_EQ(resident_bytes(trainer.parts().all().front().tensor.data_ptr()), 0) << after;
    };
    expect_away("construction");
    for (const Batch2& batch : batches) {
      trainer.step(batch.inputs[0].chunk(2)[0], batch.targets[0].chunk(2)[0]);
      expect_away("a step");
    }
    const Batch2& last = batches.back();
    trainer.evaluate(last.inputs[0].chunk(2)[0], last.targets[0].chunk(2)[0]);
    expect_away("a validation");
    const auto whole = trainer.whole_parameters();
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
