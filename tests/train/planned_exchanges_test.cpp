// What ranks that share layers exchange in a step is what was planned, name by name, and so is
// where passes of overlapped pairs change.
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"
#include "penstock/plan/lower/exchange_proof.h"
#include "penstock/runtime/train/shared_layers.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/paired_programs.h"
#include "tests/train/token_batches.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kTokens = 32;

nn::DecoderOptions options_of(const std::string& form) {
  nn::DecoderOptions options{.vocabulary = kTokens,
                             .layers = 5,
                             .hidden = 8,
                             .intermediate = 32,
                             .heads = 2,
                             .kv_heads = 2,
                             .head_dim = 16};
  options.tie_embeddings = form == "Tied";
  if (form == "Documents") options.document_end = 3;
  return options;
}

// The places of a rank, actions and exchanges.
using Log = std::vector<std::string>;

// What a sum of gradients is called in logs.
constexpr const char* kSum = "a sum of gradients";

bool is_exchange(std::string_view place) {
  return place.starts_with("the ") && place.find(" behind ") != std::string_view::npos;
}

// Compute actions and exchanges of each rank in one step.
std::vector<Log> logs_of(const TrainerOptions& given, const std::vector<nn::LayerSpec>& layers) {
  const bool is_even = given.sums == GradientSums::Invariant;
  const Batch2 batch = with_masked_targets(8, /*length=*/is_even ? 6 : 5, kTokens);
  std::vector<Log> logs(static_cast<std::size_t>(given.mesh.size()));
  comm::run_ranks(static_cast<std::int32_t>(given.mesh.size()), [&](comm::Communicator& ranks) {
    execute::Progress progress;
    TrainerOptions options = given;
    options.progress = &progress;
    Trainer trainer(options, layers, nn::token_loss(kTokens), ranks);
    Log& log = logs[ranks.rank().index()];
    progress.arrived = [&](std::string_view place) {
      const bool is_action = !place.empty() && place.front() >= '0' && place.front() <= '9';
      const bool computes = is_action && schedule::is_compute(schedule::parse_action(place).op);
      if (computes || is_exchange(place)) log.emplace_back(place);
      if (is_even && place == "summing gradients over ranks that share layers") {
        log.emplace_back(kSum);
      }
    };
    trainer.step(batch.inputs, batch.targets);
    progress.arrived = nullptr;
  });
  return logs;
}

// The same from the plan.
std::vector<Log> planned(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers) {
  const auto schedule = lower::training_program(program_of(options));
  partition::ModelMeta meta = nn::meta_of(layers);
  const auto partition = partition::partition(meta, schedule.schedule().stages, options.partition);
  const auto stages = exchanges_of_stages(layers, nn::token_loss(kTokens), partition,
                                          options.checkpointing, options.sums);
  const mesh::Mesh mesh = mesh::make_mesh(options.mesh);
  const lower::MeshProgram program = lower::mesh_program(schedule, stages, mesh);
  std::vector<Log> logs;
  for (std::int32_t rank = 0; rank < mesh.world_size(); ++rank) {
    Log& log = logs.emplace_back();
    const auto of_schedule = static_cast<std::size_t>(mesh.index(Rank(rank), mesh::Role::Pipe));
    const schedule::Program& actions = schedule.schedule().programs[of_schedule];
    for (const lower::RankStep& step : program.ranks[static_cast<std::size_t>(rank)]) {
      if (step.does == lower::RankStep::Does::Compute) {
        log.push_back(schedule::to_string(actions[static_cast<std::size_t>(step.action)]));
      } else if (step.does == lower::RankStep::Does::Exchange) {
        const std::string& name = program.names[static_cast<std::size_t>(step.what)];
        log.push_back(is_exchange(name) ? name : kSum);
      }
    }
  }
  return logs;
}

TrainerOptions base() {
  return {.mesh = mesh::Shape{.pipe = 2}.with(mesh::Axis::Tensor, 2),
          .microbatches = 4,
          .partition = partition::Uniform{},
          .loss_scale = LossScale::tokens()};
}

TEST(PlannedExchanges, AreThoseThatRun) {
  for (const char* form : {"Llama", "Tied", "Documents"}) {
    for (const char* schedule : {"1f1b", "interleaved_1f1b", "zbv", "zb_h1", "dualpipev"}) {
      for (const std::int64_t interval : {0, 1, 2}) {
        SCOPED_TRACE(str(form, " ", schedule, " recomputed by ", interval));
        const auto layers = nn::decoder_layers(options_of(form));
        TrainerOptions options = base();
        options.schedule = schedule;
        options.checkpointing.interval = interval;
        EXPECT_EQ(logs_of(options, layers), planned(options, layers));
      }
    }
  }
}

// Of one stage, too.
TEST(PlannedExchanges, OfPairsChangeWhereTheyAreAwaited) {
  const testing_support::TemporaryFolder folder;
  for (const char* schedule : {"1f1b", "dualpipev", kSearched}) {
    for (const auto sums : {GradientSums::AsTheyCome, GradientSums::Invariant}) {
      for (const std::int64_t interval : {0, 1}) {
        SCOPED_TRACE(str(schedule, " recomputed by ", interval));
        const auto layers = nn::decoder_layers(options_of("Llama"));
        TrainerOptions options = base();
        options.program = paired_programs(schedule, 2, 4, folder).paired;
        options.checkpointing.interval = interval;
        options.sums = sums;
        EXPECT_EQ(logs_of(options, layers), planned(options, layers));
      }
    }
  }
}

}  // namespace
}  // namespace penstock::train
