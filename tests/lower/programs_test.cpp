#include "penstock/plan/lower/programs.h"

#include <gtest/gtest.h>

#include <fstream>

#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::lower {
namespace {

using testing_support::message_of;

TEST(TrainingProgram, HasItsMessages) {
  const auto program = training_program({.schedule = "zbv", .ranks = 2, .microbatches = 4});
  EXPECT_TRUE(is_lowered(program.schedule()));
}

TEST(TrainingProgram, WhatCannotTrainIsRefused) {
  EXPECT_EQ(message_of([] { training_program({.schedule = "forward_only", .ranks = 2}); }),
            "schedule forward_only has no backward: it cannot train");
  const testing_support::TemporaryFolder folder;
  const std::string file = folder.file("rows.csv");
  const auto refusal = [&](const char* rows, std::int32_t microbatches) {
    std::ofstream(file) << rows;
    return message_of(
        [&] { training_program({.file = file, .ranks = 2, .microbatches = microbatches}); });
  };
  const std::string begin = "schedule file \"" + file + "\" has ";
  EXPECT_EQ(refusal("0F0,0B0\n1F0,1B0\n2F0,2B0\n", 1),
            begin + "3 rows, the mesh has 2 pipeline ranks: one row per rank");
  EXPECT_EQ(refusal("0F0\n1F0\n", 1), begin + "no backward: it cannot train; add the B of each F");
  EXPECT_EQ(refusal("0F0,0B0\n1F0,1B0\n", 2), begin + "1 microbatches, the batch has 2");
}

TEST(TrainingProgram, OfSeveralReplicasHasTheirMessages) {
  const testing_support::TemporaryFolder folder;
  const std::string file = folder.file("rerouted.json");
  // Microbatch 1 was that of a rank with stage 1 which is lost.
  std::ofstream(file) << R"({"replicas": 2, "programs":
      [["0F0", "0B0"], ["0F1", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]})";
  const auto program = training_program({.file = file, .ranks = 3, .microbatches = 2});
  EXPECT_EQ(schedule::to_csv(program.schedule()),
            "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n"
            "0F1,0SEND_F1,0RECV_B1,0B1,0REDUCE_GRAD\n"
            "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n");
}

TEST(ForwardProgram, OfSeveralReplicasHasEachMicrobatchWhereItTrains) {
  schedule::Schedule order{.name = "two", .stages = 2, .microbatches = 3, .replicas = 2};
  order.programs = {schedule::parse_csv("0F0,0B0,0F2,0B2", "r0").programs[0],
                    schedule::parse_csv("0F1,0B1", "r1").programs[0],
                    schedule::parse_csv("1F0,1B0,1F1,1B1,1F2,1B2", "r2").programs[0]};
  const auto training = verify::VerifiedSchedule::from(order);
  EXPECT_EQ(forward_microbatches_min(training), 2);
  EXPECT_EQ(schedule::to_csv(forward_program(training, 3).schedule()),
            "0F0,0SEND_F0,0F2,0SEND_F2\n"
            "0F1,0SEND_F1\n"
            "1RECV_F0,1RECV_F1,1RECV_F2,1F0,1F1,1F2\n");
}

TEST(ForwardProgram, TakesAsManyMicrobatchesAsEveryStageOfARankNeeds) {
  schedule::Schedule order = schedule::parse_csv("0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n", "crossed");
  order.replicas = 2;
  const auto training = verify::VerifiedSchedule::from(order);
  EXPECT_EQ(forward_microbatches_min(training), 2);
}

TEST(WithMessages, AddsThemToAnOrderThatHasNone) {
  const auto order = schedule::make_schedule("1f1b", {.ranks = 2, .microbatches = 2});
  for (const char* how : {"penstock", "torch"}) {
    const schedule::Schedule program = with_messages(order, how);
    EXPECT_TRUE(is_lowered(program));
    EXPECT_EQ(message_of([&] { with_messages(program, how); }),
              title(program) + " has messages already");
  }
  EXPECT_EQ(message_of([&] { with_messages(order, "mpi"); }),
            "how is \"mpi\", must be \"penstock\" or \"torch\"");
}

// With as many stages on each rank, a forward pass takes a rank's own work, and what it costs to
// fill and to drain the pipeline: a step for each other stage at most.
TEST(ForwardProgram, KeepsThePipelineFullWhateverThePlacement) {
  constexpr std::int32_t kRanks = 4, kMicrobatches = 16;
  int programs = 0;
  for (const schedule::Generator& generator : schedule::registry()) {
    const schedule::Sizes sizes{.ranks = kRanks,
                                .stages_per_rank = generator.stages_per_rank,
                                .microbatches = kMicrobatches};
    if (generator.purpose != schedule::Purpose::Train) continue;
    if (!generator.objection(sizes).empty()) continue;
    const auto training = training_program(
        {.schedule = std::string(generator.name), .ranks = kRanks, .microbatches = kMicrobatches});
    const auto forward = forward_program(training, kMicrobatches);
    const std::int32_t stages = training.schedule().stages;
    const double work = 1.0 * stages / kRanks * kMicrobatches;
    const simulate::Simulation simulation = simulate::simulate(forward);
    EXPECT_LE(simulation.makespan, work + stages - 1) << generator.name;
    ++programs;
  }
  EXPECT_GE(programs, 12);
}

}  // namespace
}  // namespace penstock::lower
