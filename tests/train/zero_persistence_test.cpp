// ZeRO 3 with small parameters that stay whole: they are updated in slices like all others.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "tests/train/frozen.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kBucketBytes = 6000;
constexpr std::int64_t kSmall = 16;  // Elements: norms, some biases.

TrainerOptions persistent(std::int32_t pipe, partition::PersistenceLimits persistence) {
  return {.mesh = {.pipe = pipe, .data = 2},
          .microbatches = 2,
          .partition = partition::Uniform{},
          .gradient_clipping = 0.5,
          .zero = {.stage = ZeroStage::Parameters,
                   .bucket_bytes = kBucketBytes,
                   .limits = {.budget_bytes = 3 * kBucketBytes, .prefetch_bytes = kBucketBytes},
                   .persistence = persistence}};
}

std::vector<Batch2> batches_of(const Kind& kind) {
  std::vector<Batch2> batches;
  for (int i = 0; i < 3; ++i) batches.push_back(kind.batch(8, kSequence));
  return batches;
}

TEST(ZeroPersistence, HasTheBitsOfWholeReplicas) {
  for (const char* name : {"Gpt", "Ties", "BatchNorm", "TiedGpt"}) {
    const Kind kind = kind_named(name);
    const std::vector<Batch2> batches = batches_of(kind);
    TrainerOptions whole = persistent(2, {});
    whole.zero = {};
    const Trained expected = train(whole, kind, batches);
    for (const partition::PersistenceLimits limits :
         {partition::PersistenceLimits{.elements = kSmall},
          partition::PersistenceLimits{.elements = 1 << 20},
          partition::PersistenceLimits{.elements = 1 << 20, .elements_in_all = 3 * kSmall}}) {
      SCOPED_TRACE(str(name, " up to ", limits.elements, " of ", limits.elements_in_all));
      EXPECT_TRUE(same(train(persistent(2, limits), kind, batches), expected));
    }
  }
}

TEST(ZeroPersistence, HasThemUnderEverySchedule) {
  const Kind kind = kind_named("Ties");
  const std::vector<Batch2> batches = batches_of(kind);
  for (const char* schedule : {"gpipe", "interleaved_1f1b", "zbv"}) {
    SCOPED_TRACE(schedule);
    TrainerOptions options = persistent(2, {.elements = kSmall});
    options.schedule = schedule;
    TrainerOptions whole = options;
    whole.zero = {};
    EXPECT_TRUE(same(train(options, kind, batches), train(whole, kind, batches)));
  }
}

// Whether a parameter has memory between two steps: one that is away has none.
bool is_here(const at::Tensor& tensor) { return tensor.storage().nbytes() > 0; }

TEST(ZeroPersistence, SmallParametersStayAndOthersGo) {
  Kind kind = kind_named("Gpt");
  kind.model[1] = frozen(std::move(kind.model[1]));
  const Batch2 batch = kind.batch(8, kSequence);
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(persistent(1, {.elements = kSmall}), kind.model, kind.loss, communicator);
    trainer.step(batch.inputs, batch.targets);
    std::set<bool> seen;
    for (const stage::Stage& stage : trainer.rank_model().stages()) {
      for (const auto* parameters : {&stage.parameters(), &stage.layers().frozen()}) {
        for (const auto& [name, tensor] : *parameters) {
          EXPECT_EQ(is_here(tensor), tensor.numel() <= kSmall) << name;
          seen.insert(is_here(tensor));
        }
      }
    }
    EXPECT_EQ(seen.size(), 2U);
  });
}

TEST(ZeroPersistence, TheirStatesAreCut) {
  const Kind kind = kind_named("Gpt");
  std::array<std::int64_t, 2> updated = {};
  std::int64_t all = 0;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const Trainer trainer(persistent(1, {.elements = 1 << 20}), kind.model, kind.loss,
                          communicator);
    for (const at::Tensor& part : trainer.rank_model().replicated().parts().tensors()) {
      updated[communicator.rank().index()] += part.numel();
    }
    if (communicator.rank().value > 0) return;
    for (const auto& [name, tensor] : trainer.parameters()) all += tensor.numel();
  });
  EXPECT_EQ(updated[0] + updated[1], all);
  EXPECT_NEAR(static_cast<double>(updated[0]), static_cast<double>(all) / 2,
              0.1 * static_cast<double>(all));
}

TEST(ZeroPersistence, WhatStaysTakesNothingOfTheBudget) {
  const Kind kind = kind_named("Gpt");
  const Batch2 batch = kind.batch(8, kSequence);
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    Trainer trainer(persistent(1, {.elements = 1 << 20}), kind.model, kind.loss, communicator);
    trainer.step(batch.inputs, batch.targets);
    EXPECT_EQ(trainer.rank_model().replicated().paging().uses, 0);
    EXPECT_EQ(trainer.rank_model().replicated().paging().peak_bytes, 0);
  });
}

// Ranks that would cut parameters otherwise are told apart before they do.
TEST(ZeroPersistence, IsTheSameOnAllRanks) {
  const Kind kind = kind_named("Gpt");
  std::array<std::string, 2> errors;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const std::int64_t elements = kSmall + communicator.rank().value;
    try {
      const Trainer trainer(persistent(1, {.elements = elements}), kind.model, kind.loss,
                            communicator);
    } catch (const Error& error) {
      errors[communicator.rank().index()] = error.message();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("ZeRO persistence"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace penstock::train
