// GradientSums::Invariant: the same bits for every number of replicas, stages and every schedule.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

using testing_support::same_bits;
using Tensors = std::map<std::string, at::Tensor>;

struct Layout {
  const char* schedule = "1f1b";
  std::int32_t pipe = 1;
  std::int32_t data = 1;
  std::int32_t stages_per_rank = 1;
};

constexpr std::int64_t kSteps = 5;
constexpr std::int32_t kMicrobatches = 12;  // Of all replicas.

struct Trained {
  std::vector<StepReport> reports;
  Tensors parameters;
};

Trained train(const Kind& kind, const Layout& layout, GradientSums sums,
              const std::vector<Batch2>& batches) {
  const TrainerOptions options{.mesh = {.pipe = layout.pipe, .data = layout.data},
                               .schedule = layout.schedule,
                               .stages_per_rank = layout.stages_per_rank,
                               .microbatches = kMicrobatches / layout.data,
                               .partition = partition::Uniform{},
                               .optimizer = {.lr = 3e-3, .weight_decay = 0.1},
                               .gradient_clipping = 0.5,
                               .sums = sums};
  Trained trained;
  std::mutex mutex;
  comm::run_ranks(layout.pipe * layout.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const auto replica =
        static_cast<std::size_t>(trainer.mesh().coordinate(communicator.rank()).data);
    for (const Batch2& batch : batches) {
      const auto mine = [&](const nn::Values& values) -> nn::Values {
        return values[0].chunk(layout.data)[replica];
      };
      const StepReport report = trainer.step(mine(batch.inputs), mine(batch.targets));
      if (communicator.rank().value == 0) trained.reports.push_back(report);
    }
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : trainer.parameters()) trained.parameters[name] = tensor;
  });
  return trained;
}

bool same(const Trained& a, const Trained& b) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    if (a.reports[i].loss != b.reports[i].loss) return false;
    if (a.reports[i].grad_norm != b.reports[i].grad_norm) return false;
  }
  return std::ranges::all_of(a.parameters, [&](const auto& named) {
    return same_bits(named.second, b.parameters.at(named.first));
  });
}

class Invariant : public testing::TestWithParam<const char*> {};

TEST_P(Invariant, EveryLayoutHasTheSameBitsAtEveryStep) {
  const Kind kind = kind_named(GetParam());
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(2 * kMicrobatches, kSequence));
  const Trained one = train(kind, {}, GradientSums::Invariant, batches);
  for (const Layout& layout : {Layout{"gpipe", 1, 2}, Layout{"1f1b", 1, 3}, Layout{"1f1b", 1, 4},
                               Layout{"zb_h1", 2, 2}, Layout{"looped_bfs", 2, 1, 2},
                               Layout{"zbv", 2, 2, 2}, Layout{"interleaved_1f1b", 2, 3, 2}}) {
    EXPECT_TRUE(same(train(kind, layout, GradientSums::Invariant, batches), one))
        << layout.schedule << " " << layout.pipe << " x " << layout.data;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Invariant,
                         testing::Values("Gpt", "GptWithDropout", "Ties", "Skips"),
                         [](const auto& kind) { return kind.param; });

TEST(InvariantIsNeeded, AsTheyComeReplicasAddInAnotherOrder) {
  const Kind kind = kind_named("Gpt");
  std::vector<Batch2> batches;
  for (int i = 0; i < kSteps; ++i) batches.push_back(kind.batch(2 * kMicrobatches, kSequence));
  const Trained one = train(kind, {}, GradientSums::AsTheyCome, batches);
  EXPECT_FALSE(same(train(kind, {"gpipe", 1, 2}, GradientSums::AsTheyCome, batches), one));
}

}  // namespace
}  // namespace penstock::train
