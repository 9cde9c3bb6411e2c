// Exchanges inside of layers, written out for all ranks of a mesh and replayed.
#include "penstock/plan/lower/exchange_proof.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "tests/support/schedules.h"

namespace penstock::lower {
namespace {

using exchange::cut;
using exchange::kInvariant;
using exchange::kPartial;
using exchange::kReplicated;
using Does = RankStep::Does;

// A layer of two pieces: what it takes is gathered, what it gives is scattered.
partition::LayerMeta block(const std::string& name) {
  const exchange::Held tokens = cut(1);
  return {.name = name,
          .type = "Block",
          .parameters = 1,
          .pieces = {{.takes = {tokens},
                      .gives = {tokens, tokens},
                      .behind = {{.value = 1, .before = tokens, .after = kReplicated}}},
                     {.takes = {tokens, kReplicated},
                      .gives = {tokens, kPartial},
                      .behind = {{.value = 1, .before = kPartial, .after = tokens}},
                      .parameters = {"weight"}},
                     {.takes = {tokens, tokens}, .gives = {tokens}}}};
}

partition::LayerMeta embedding() {
  return {.name = "embedding",
          .type = "Embedding",
          .parameters = 1,
          .pieces = {{.takes = {kInvariant},
                      .gives = {kPartial},
                      .behind = {{.value = 0, .before = kPartial, .after = cut(1)}}}}};
}

exchange::Pieces loss() {
  return {{.takes = {cut(1), kInvariant},
           .gives = {kPartial},
           .behind = {{.value = 0, .before = kPartial, .after = kInvariant}}},
          {.takes = {kInvariant}, .gives = {kInvariant}}};
}

partition::ModelMeta model_of(std::int64_t blocks) {
  partition::ModelMeta model = {embedding()};
  for (std::int64_t i = 0; i < blocks; ++i) model.push_back(block(str("block ", i)));
  return model;
}

std::vector<StageExchanges> stages_of(const partition::ModelMeta& model, std::int32_t stages,
                                      std::int64_t interval = 0) {
  std::vector<StageExchanges> all;
  const auto layers = static_cast<std::int64_t>(model.size());
  for (std::int64_t s = 0; s < stages; ++s) {
    const auto ranges = partition::segment_ranges(
        model, layers * s / stages, layers * (s + 1) / stages, {.interval = interval});
    all.push_back(exchanges_of(model, ranges, s + 1 == stages ? loss() : exchange::Pieces{}));
  }
  return all;
}

verify::VerifiedSchedule schedule_of(const std::string& name, std::int32_t ranks,
                                     std::int32_t microbatches) {
  return training_program({.schedule = name, .ranks = ranks, .microbatches = microbatches});
}

mesh::Mesh mesh_of(std::int32_t pipe, std::int32_t data, std::int32_t tensor) {
  return mesh::make_mesh(mesh::Shape{.pipe = pipe, .data = data}.with(mesh::Axis::Tensor, tensor));
}

TEST(StageExchanges, AreThoseOfThePiecesInTheOrderOfAPass) {
  const StageExchanges all = stages_of({embedding(), block("a")}, 1)[0];
  EXPECT_EQ(all.forward,
            (PassExchanges{{"the reduce-scatter behind piece 0 of layer \"embedding\""},
                           {"the all-gather behind piece 0 of layer \"a\""},
                           {"the reduce-scatter behind piece 1 of layer \"a\""},
                           {.name = "the all-reduce behind piece 0 of the loss",
                            .awaited = Awaited::InPlace}}));
  EXPECT_EQ(all.backward,
            (PassExchanges{
                {"the all-gather behind piece 0 of layer \"a\"", Beside::Backward, Awaited::Later},
                {"the all-gather of gradients behind piece 1 of layer \"a\""},
                {"the reduce-scatter of gradients behind piece 0 of layer \"a\"", Beside::Weights},
                {"the all-gather of gradients behind piece 0 of layer \"embedding\""}}));
}

TEST(StageExchanges, OfABackwardStartAheadOfWhatIsComputedBesideThem) {
  const StageExchanges all = stages_of({block("a"), block("b")}, 1)[0];
  EXPECT_EQ(
      all.backward,
      (PassExchanges{
          {"the all-gather behind piece 0 of layer \"b\"", Beside::Backward, Awaited::Later},
          {"the all-gather of gradients behind piece 1 of layer \"b\""},
          {"the reduce-scatter of gradients behind piece 0 of layer \"b\"", Beside::Weights},
          {"the all-gather behind piece 0 of layer \"a\"", Beside::Backward, Awaited::Later},
          {"the all-gather of gradients behind piece 1 of layer \"a\""},
          {"the reduce-scatter of gradients behind piece 0 of layer \"a\"", Beside::Weights}}));
}

TEST(StageExchanges, AskForTheSizeWhereNoExchangeBeforeHasShownIt) {
  const StageExchanges second = stages_of({embedding(), block("a")}, 2)[1];
  EXPECT_EQ(second.forward.front().name, "the sum of sizes behind piece 0 of layer \"a\"");
  EXPECT_EQ(second.forward.size(), 4u);
}

TEST(StageExchanges, RunAgainWhereLayersAreComputedAgain) {
  const StageExchanges all = stages_of({block("a")}, 1, /*interval=*/1)[0];
  EXPECT_EQ(all.backward,
            (PassExchanges{{"the all-gather behind piece 0 of layer \"a\""},
                           {"the reduce-scatter behind piece 1 of layer \"a\""},
                           {"the all-gather of gradients behind piece 1 of layer \"a\""},
                           {"the reduce-scatter of gradients behind piece 0 of layer \"a\"",
                            Beside::Weights}}));
}

TEST(ExchangeProof, HasSumsOfGradientsBehindEveryBAndW) {
  std::vector<StageExchanges> stages = stages_of(model_of(3), 2);
  for (StageExchanges& each : stages) each.weights = {{"the sum of gradients"}};
  for (const char* name : {"1f1b", "zb_h1"}) {
    const auto schedule = schedule_of(name, 2, 4);
    const MeshProgram program = mesh_program(schedule, stages, mesh_of(2, 1, 2));
    EXPECT_EQ(objections(program, schedule), std::vector<std::string>{}) << name;
    for (const std::vector<RankStep>& steps : program.ranks) {
      EXPECT_EQ(std::ranges::count_if(steps,
                                      [&](const RankStep& step) {
                                        return step.does == Does::Exchange &&
                                               program.names[static_cast<std::size_t>(step.what)] ==
                                                   "the sum of gradients";
                                      }),
                4)
          << name;
    }
  }
}

TEST(ExchangeProof, EverySchedulesProgramsRun) {
  for (const char* name : {"gpipe", "1f1b", "interleaved_1f1b", "zbv", "zb_h1"}) {
    for (const std::int64_t interval : {0, 1}) {
      const auto schedule = schedule_of(name, 4, 8);
      const auto stages = stages_of(model_of(11), schedule.schedule().stages, interval);
      const MeshProgram program = mesh_program(schedule, stages, mesh_of(4, 2, 4));
      EXPECT_EQ(objections(program, schedule), std::vector<std::string>{}) << name;
    }
  }
}

// Names of a rank's exchanges from the action `first` to the one behind it.
std::vector<std::string> names_of_two(const MeshProgram& program, std::size_t rank,
                                      std::int32_t first) {
  std::vector<std::string> names;
  for (const RankStep& step : program.ranks[rank]) {
    if (step.does != Does::Exchange || step.action < first || step.action > first + 1) continue;
    names.push_back(program.names[static_cast<std::size_t>(step.what)]);
  }
  return names;
}

TEST(ExchangeProof, HasThePassesOfAPairBraidedWhereTheyAwaitExchanges) {
  const auto schedule = verify::VerifiedSchedule::from(
      testing_support::rows({"0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1"}));
  const MeshProgram program =
      mesh_program(schedule, stages_of({block("a"), block("b")}, 2), mesh_of(1, 1, 2));
  EXPECT_EQ(objections(program, schedule), std::vector<std::string>{});
  EXPECT_EQ(
      names_of_two(program, 0, 2),
      (std::vector<std::string>{"the sum of sizes behind piece 0 of layer \"a\"",  // In place.
                                "the all-gather behind piece 0 of layer \"a\"",
                                "the all-gather behind piece 0 of layer \"b\"",
                                "the all-gather of gradients behind piece 1 of layer \"b\"",
                                "the reduce-scatter behind piece 1 of layer \"a\"",
                                "the reduce-scatter of gradients behind piece 0 of layer \"b\""}));
  // All but the sizes.
  EXPECT_EQ(program.beside_pass, (std::vector<std::int64_t>{5, 5}));
}

TEST(ExchangeProof, PairsOfEveryScheduleRun) {
  for (const char* name : {"dualpipev", "1f1b"}) {
    const schedule::Schedule order = schedule::make_schedule(
        name, {.ranks = 4,
               .stages_per_rank = schedule::find_generator(name).stages_per_rank,
               .microbatches = 8});
    const auto schedule = verify::VerifiedSchedule::from(
        schedule::lower_communication(schedule::overlap_pairs(order)));
    const auto stages = stages_of(model_of(11), schedule.schedule().stages);
    const MeshProgram program = mesh_program(schedule, stages, mesh_of(4, 2, 4));
    EXPECT_EQ(objections(program, schedule), std::vector<std::string>{}) << name;
    EXPECT_GT(program.beside_pass.front(), 0) << name;
  }
}

class Mutants : public testing::TestWithParam<const char*> {
 protected:
  Mutants() : schedule_(schedule_of(GetParam(), 2, 4)) {
    program_ = mesh_program(schedule_, stages_of(model_of(5), schedule_.schedule().stages),
                            mesh_of(2, 1, 3));
  }
  // The places of all exchanges of a rank.
  std::vector<std::size_t> exchanges(std::size_t rank) const {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
      if (program_.ranks[rank][i].does == Does::Exchange) places.push_back(i);
    }
    return places;
  }

  verify::VerifiedSchedule schedule_;
  MeshProgram program_;
};

// One rank's exchange left out, doubled, swapped with its next one of another name, or replaced.
TEST_P(Mutants, AreAllFound) {
  std::mt19937 random(17);
  int mutants = 0;
  for (int i = 0; i < 200; ++i) {
    const std::size_t rank = random() % program_.ranks.size();
    const std::vector<std::size_t> places = exchanges(rank);
    const std::size_t number = random() % (places.size() - 1);
    MeshProgram mutant = program_;
    std::vector<RankStep>& steps = mutant.ranks[rank];
    const auto place = steps.begin() + static_cast<std::ptrdiff_t>(places[number]);
    switch (i % 4) {
      case 0:
        steps.erase(place);
        break;
      case 1:
        steps.insert(place, *place);
        break;
      case 2: {
        const auto next = steps.begin() + static_cast<std::ptrdiff_t>(places[number + 1]);
        if (place->what == next->what) continue;
        std::swap(place->what, next->what);
        break;
      }
      default:
        place->what = (place->what + 1) % std::ssize(mutant.names);
    }
    ++mutants;
    EXPECT_NE(objections(mutant, schedule_), std::vector<std::string>{})
        << "rank " << rank << ", exchange " << number << ", kind " << i % 4;
  }
  EXPECT_GE(mutants, 150);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Mutants, testing::Values("gpipe", "1f1b", "zbv", "zb_h1"));

TEST(ExchangeProof, SaysWhichRanksComeToDifferentExchanges) {
  const auto schedule = schedule_of("1f1b", 2, 2);
  MeshProgram program =
      mesh_program(schedule, stages_of({embedding(), block("a")}, 2), mesh_of(2, 1, 2));
  std::vector<RankStep>& steps = program.ranks[3];  // The second of those that share "a".
  const auto gather = std::ranges::find_if(steps, [&](const RankStep& step) {
    return step.does == Does::Exchange &&
           program.names[static_cast<std::size_t>(step.what)].starts_with("the all-gather");
  });
  steps.erase(gather);
  EXPECT_EQ(objections(program, schedule),
            (std::vector<std::string>{
                "ranks that share layers come to different exchanges: rank 2 waits in 1F0 for the "
                "all-gather behind piece 0 of layer \"a\", and rank 3 waits in 1F0 for the "
                "reduce-scatter behind piece 1 of layer \"a\" [X010]"}));
}

TEST(ExchangeProof, SaysWhoWaitsForEver) {
  const auto schedule = schedule_of("1f1b", 1, 1);
  MeshProgram program =
      mesh_program(schedule, stages_of({embedding(), block("a")}, 1), mesh_of(1, 1, 2));
  program.ranks[1].pop_back();
  EXPECT_EQ(objections(program, schedule),
            (std::vector<std::string>{
                "1 ranks wait for ever: rank 0 waits in 0B0 for the all-gather of gradients behind "
                "piece 0 of layer \"embedding\" [X011]"}));
}

// Two ranks send to each other only behind what each waits for.
TEST(ExchangeProof, FindsACircleOfMessagesAndExchanges) {
  const auto schedule = schedule_of("1f1b", 2, 2);
  MeshProgram program =
      mesh_program(schedule, stages_of({embedding(), block("a")}, 2), mesh_of(2, 1, 2));
  // Rank 1 sends its first output only behind its backward, for which it needs the other stage.
  std::vector<RankStep>& steps = program.ranks[1];
  const auto send = std::ranges::find(steps, Does::Send, &RankStep::does);
  const RankStep moved = *send;
  steps.erase(send);
  steps.push_back(moved);
  const std::vector<std::string> found = objections(program, schedule);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("4 ranks wait for ever"), std::string::npos) << found[0];
}

}  // namespace
}  // namespace penstock::lower
