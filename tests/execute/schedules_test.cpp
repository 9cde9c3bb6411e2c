// Every schedule of the registry trains, and gives what the model in one process gives.
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include "penstock/nn/gpt.h"
#include "penstock/runtime/nn/mlp.h"
#include "tests/execute/every_schedule.h"

namespace penstock::execute {
namespace {

constexpr std::int64_t kWidth = 6;
constexpr std::int64_t kSamples = 3;

StepInputs random_step(std::int32_t microbatches) {
  StepInputs step{.loss = mean_squared_error, .loss_factors = equal_factors(microbatches)};
  for (std::int32_t m = 0; m < microbatches; ++m) {
    step.inputs.push_back(at::rand({kSamples, kWidth}));
    step.targets.push_back(at::rand({kSamples, kWidth}));
  }
  return step;
}

StepInputs random_text(std::int32_t microbatches) {
  StepInputs step{.loss = nn::next_byte_loss, .loss_factors = equal_factors(microbatches)};
  for (std::int32_t m = 0; m < microbatches; ++m) {
    step.inputs.push_back(at::randint(nn::kVocabulary, {2, 8}, at::kLong));
    step.targets.push_back(at::randint(nn::kVocabulary, {2, 8}, at::kLong));
  }
  return step;
}

class EverySchedule : public testing::TestWithParam<std::string> {
 protected:
  const schedule::Generator& generator() const { return schedule::find_generator(GetParam()); }
};

TEST_P(EverySchedule, HasTheBitsOfOneProcessAtEverySizeThatItTakes) {
  const auto model = nn::mlp_layers(kWidth, 8);
  int programs = 0;
  for (const std::int32_t microbatches : {1, 2, 4, 5, 8, 12}) {
    const StepInputs step = random_step(microbatches);
    const Reference reference = make_reference(model, step);
    for (const std::int32_t ranks : {2, 4}) {
      for (const std::int32_t stages_per_rank : {1, 2}) {
        const schedule::Sizes sizes{
            .ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = microbatches};
        if (!generator().objection(sizes).empty()) continue;
        const auto schedule = from_name(GetParam(), sizes);
        SCOPED_TRACE(schedule::title(schedule.schedule()));
        expect_reference(schedule, model, {random_step(microbatches), step}, reference);
        ++programs;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GE(programs, 4);
  RecordProperty("programs", programs);
}

TEST_P(EverySchedule, TrainsAGpt) {
  const schedule::Sizes loop{.ranks = 2, .stages_per_rank = 1, .microbatches = 4};
  const schedule::Sizes two{.ranks = 2, .stages_per_rank = 2, .microbatches = 4};
  const auto model = nn::gpt_layers({.layers = 2, .hidden = 12, .heads = 3, .sequence_length = 8});
  const StepInputs step = random_text(4);
  expect_reference(from_name(GetParam(), generator().objection(two).empty() ? two : loop), model,
                   {step}, make_reference(model, step));
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& generator : schedule::registry()) names.emplace_back(generator.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, EverySchedule, testing::ValuesIn(names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace penstock::execute
