// Programs that nobody wrote: random placement, random legal order, backwards split or not.  Those
// that verify run and give what one process gives; those that do not start no rank.
#include <ATen/ops/rand.h>

#include "penstock/core/error.h"
#include "penstock/runtime/nn/mlp.h"
#include "tests/execute/every_schedule.h"
#include "tests/support/schedules.h"

namespace penstock::execute {
namespace {

using testing_support::Random;

constexpr std::int64_t kWidth = 6;

StepInputs random_step(std::int32_t microbatches) {
  StepInputs step{.loss = mean_squared_error, .loss_factors = equal_factors(microbatches)};
  for (std::int32_t m = 0; m < microbatches; ++m) {
    step.inputs.push_back(at::rand({2, kWidth}));
    step.targets.push_back(at::rand({2, kWidth}));
  }
  return step;
}

// With messages, reductions and, half of the time, weights gathered and dropped.
schedule::Schedule random_program(Random& random, int trial) {
  const double split = trial % 3 == 0 ? 0.0 : trial % 3 == 1 ? 1.0 : 0.5;
  schedule::Schedule order =
      testing_support::random_order(random, {.overlap = trial % 2 == 0 ? 0 : 0.5, .split = split});
  const auto reduction =
      random.chance(0.5) ? schedule::Reduction::OfAll : schedule::Reduction::OfEach;
  order = schedule::add_reduce_gradients(std::move(order), reduction);
  if (random.chance(0.5)) order = testing_support::with_shards(std::move(order));
  return schedule::add_send_recv(order, random.between(0, 5));
}

void expect_right(const verify::VerifiedSchedule& program) {
  const auto model = nn::mlp_layers(kWidth, 7);
  const StepInputs step = random_step(program.schedule().microbatches);
  expect_reference(program, model, {step}, make_reference(model, step));
}

TEST(RandomPrograms, ThatVerifyGiveWhatOneProcessGives) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 200; ++trial) {
    const auto program = verify::VerifiedSchedule::from(random_program(random, trial));
    SCOPED_TRACE(schedule::grid(program.schedule()));
    expect_right(program);
    if (HasFailure()) return;
  }
}

// One action deleted, doubled, or exchanged with its neighbour or with any other.
schedule::Schedule mutant(schedule::Schedule schedule, Random& random) {
  std::vector<schedule::Program*> programs;
  for (auto& program : schedule.programs) {
    if (program.size() > 1) programs.push_back(&program);
  }
  if (programs.empty()) return schedule;
  schedule::Program& program = *random.one_of(programs);
  const std::size_t at = random.index_of(program.size());
  const auto place = program.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random.between(0, 3)) {
    case 0:
      program.erase(place);
      break;
    case 1:
      program.insert(place, *place);
      break;
    case 2:
      std::swap(program[at], program[(at + 1) % program.size()]);
      break;
    default:
      std::swap(program[at], program[random.index_of(program.size())]);
      break;
  }
  return schedule;
}

TEST(RandomPrograms, MutantsAreRefusedBeforeAnyRankStartsOrAreRight) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  int refused = 0, ran = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const schedule::Schedule program = mutant(random_program(random, trial), random);
    SCOPED_TRACE(schedule::grid(program));
    const bool verifies = verify::verify(program).diagnostics.empty();
    try {
      // The first thing that takes a program to its ranks takes a verified one.
      expect_right(verify::VerifiedSchedule::from(program));
      EXPECT_TRUE(verifies);
      ++ran;
    } catch (const ScheduleError&) {
      EXPECT_FALSE(verifies);
      ++refused;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(ran, 10) << "some exchanges change nothing";
}

}  // namespace
}  // namespace penstock::execute
