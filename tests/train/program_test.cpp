// The programs that a Trainer runs.
#include "penstock/train/program.h"

#include <gtest/gtest.h>

#include "penstock/simulate/simulate.h"

namespace penstock::train {
namespace {

// With as many stages on each rank, a forward pass takes a rank's own work, and what it costs to
// fill and to drain the pipeline: a step for each other stage at most.
TEST(ForwardProgram, KeepsThePipelineFullWhateverThePlacement) {
  constexpr std::int32_t kRanks = 4, kMicrobatches = 16;
  for (const char* name : {"1f1b", "interleaved_1f1b", "zbv", "hanayo", "dualpipev"}) {
    const auto training =
        training_program({.schedule = name, .ranks = kRanks, .microbatches = kMicrobatches});
    const auto forward = forward_program(training, kMicrobatches);
    const std::int32_t stages = training.schedule().stages;
    const double work = 1.0 * stages / kRanks * kMicrobatches;
    const simulate::Simulation simulation = simulate::simulate(forward);
    EXPECT_LE(simulation.makespan, work + stages - 1) << name;
  }
}

}  // namespace
}  // namespace penstock::train
