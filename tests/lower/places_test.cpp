// Which ranks have the same stages, and which programs of replicas have no such places.
#include "penstock/plan/lower/places.h"

#include <gtest/gtest.h>

#include "penstock/plan/lower/programs.h"
#include "penstock/schedule/schedule.h"
#include "tests/support/message_of.h"

namespace penstock::lower {
namespace {

using Places = std::vector<std::vector<Rank>>;
using testing_support::message_of;

verify::VerifiedSchedule of_two_replicas(const char* programs) {
  schedule::Schedule order = schedule::parse_csv(programs, "pair");
  order.replicas = 2;
  return verify::VerifiedSchedule::from(order);
}

mesh::Mesh pipe_of(std::int32_t ranks) { return mesh::make_mesh(ranks, {.pipe = ranks}); }

TEST(Places, OfOneReplicaAreThoseOfTheMesh) {
  const auto program = training_program({.schedule = "1f1b", .ranks = 2, .microbatches = 2});
  EXPECT_EQ(places_of(program, mesh::make_mesh(6, {.pipe = 2, .data = 3})),
            (Places{{Rank(0), Rank(1), Rank(2)}, {Rank(3), Rank(4), Rank(5)}}));
}

TEST(Places, OfSharedLayersAreThoseOfEachPart) {
  const auto program = training_program({.schedule = "1f1b", .ranks = 2, .microbatches = 2});
  const mesh::Mesh mesh = mesh::make_mesh(mesh::Shape{.pipe = 2}.with(mesh::Axis::Tensor, 2));
  EXPECT_EQ(places_of(program, mesh), (Places{{Rank(0)}, {Rank(1)}, {Rank(2)}, {Rank(3)}}));
  EXPECT_EQ(shares_of(program, mesh).front().ranks, 1);
}

TEST(Places, OfSeveralReplicasHaveTheRanksWithTheirStages) {
  const auto program = of_two_replicas("0F0,0B0\n1F0,1B0,1F1,1B1\n0F1,0B1\n");
  EXPECT_EQ(places_of(program, pipe_of(3)), (Places{{Rank(0), Rank(2)}, {Rank(1)}}));
}

TEST(Places, RanksThatShareAStageShareAll) {
  const auto program = of_two_replicas("0F0,1F0,1B0,0B0\n0F1,0B1\n1F1,1B1\n");
  EXPECT_EQ(message_of([&] { places_of(program, pipe_of(3)); }),
            "pair(ranks=3, stages=2, microbatches=2, replicas=2): ranks 0 and 1 share stage 0, and "
            "have stages 0 1 and 0: ranks that share a stage have to share all");
}

TEST(Places, ARankSumsWhatItComputes) {
  const auto program = of_two_replicas("0F0,0B0,0F1,0B1,0REDUCE_GRAD\n0REDUCE_GRAD\n");
  EXPECT_EQ(message_of([&] { places_of(program, pipe_of(2)); }),
            "pair(ranks=2, stages=1, microbatches=2, replicas=2): rank 1 has 0REDUCE_GRAD and "
            "computes nothing of stage 0");
}

TEST(Places, AProgramOfSeveralReplicasHasAllRanks) {
  const auto program = of_two_replicas("0F0,0B0\n0F1,0B1\n");
  EXPECT_EQ(message_of([&] { places_of(program, mesh::make_mesh(4, {.pipe = 2, .data = 2})); }),
            "pair(ranks=2, stages=1, microbatches=2, replicas=2): has the programs of all ranks; "
            "mesh.data 2 must be 1");
  const mesh::Mesh shared = mesh::make_mesh(mesh::Shape{.pipe = 2}.with(mesh::Axis::Tensor, 2));
  EXPECT_EQ(message_of([&] { places_of(program, shared); }),
            "pair(ranks=2, stages=1, microbatches=2, replicas=2): has the programs of all ranks; "
            "mesh.tensor 2 must be 1");
}

}  // namespace
}  // namespace penstock::lower
