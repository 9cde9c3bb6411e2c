// verify_stepped(): DeepSpeed's own schedules pass, what breaks its claim is refused by name.
#include "penstock/plan/verify/stepped.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/lower/plan.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "tests/support/random.h"
#include "tests/support/stepped.h"
#include "tests/verify/stepped_engine.h"

namespace penstock::verify {
namespace {

using schedule::deepspeed::Kind;
using schedule::deepspeed::make_stepped;
using schedule::deepspeed::parse_stepped;
using schedule::deepspeed::Step;
using schedule::deepspeed::SteppedSchedule;
using testing_support::Random;

// The first line of each diagnostic.
std::string objections(const SteppedSchedule& schedule, const SteppedOptions& options = {}) {
  std::vector<std::string> lines;
  for (const Diagnostic& diagnostic : verify_stepped(schedule, options).diagnostics) {
    lines.push_back(split(to_string(diagnostic), '\n')[0]);
  }
  return join(lines, "\n");
}

// Steps of each stage, apart by ";"; the buffers are those that appear.
SteppedSchedule stepped(const std::vector<std::string>& stages) {
  std::string text;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    text += str("stage ", s, " buffers=2\n");
    std::size_t t = 0;
    for (const std::string& step : split(stages[s], ';')) {
      text += str("step ", t++, ": ");
      for (const std::string& word : split(trim(step), ' ')) {
        // "RecvGrad1" is short for RecvGrad(buffer_id=1), "ReduceGrads" for ReduceGrads().
        const bool buffer = !word.empty() && word.back() >= '0' && word.back() <= '9';
        if (word.empty()) continue;
        text += buffer ? str(word.substr(0, word.size() - 1), "(buffer_id=", word.back(), ") ")
                       : word + "() ";
      }
      text += "\n";
    }
  }
  return parse_stepped(text, "test");
}

// Each rank's plan has its share of the work, a layer per stage.
void expect_plans(const SteppedSchedule& stepped) {
  const auto verified = VerifiedSchedule::from(to_schedule(stepped));
  const std::int32_t stages = verified.schedule().stages;
  partition::Partition layers;
  for (std::int32_t s = 0; s <= stages; ++s) layers.bounds.push_back(s);
  const auto mesh = mesh::make_mesh(stages, {.pipe = stages, .data = 1});
  for (std::int32_t rank = 0; rank < stages; ++rank) {
    const auto plan = lower::lower(verified, layers, mesh, Rank(rank));
    const auto forwards =
        std::ranges::count(plan.instructions, lower::Kind::Forward, &lower::Instruction::kind);
    ASSERT_EQ(forwards, stepped.microbatches);
  }
}

TEST(VerifyStepped, DeepSpeedsSchedulesPassAndLower) {
  for (std::int32_t stages = 1; stages <= 8; ++stages) {
    for (std::int32_t m = 1; m <= 24; ++m) {
      for (const std::string_view name : {"train", "train_later", "inference", "gpipe"}) {
        const SteppedSchedule schedule = make_stepped(name, {.ranks = stages, .microbatches = m});
        ASSERT_EQ(objections(schedule), "") << name << " " << stages << " x " << m;
        ASSERT_EQ(SteppedEngine(schedule).run(), "") << name << " " << stages << " x " << m;
        if (stages <= 4 && m <= 8) expect_plans(schedule);
      }
    }
  }
  EXPECT_EQ(objections(make_stepped("dataparallel", {.microbatches = 5})), "");
}

TEST(VerifyStepped, TheOriginalTrainScheduleNeedsItsSpareBuffer) {
  // It receives before it sends, so that with the later version's buffers an input would be
  // overwritten whose gradient is still to be sent.
  SteppedSchedule schedule{.name = "train", .microbatches = 4, .stages = {}};
  for (std::int32_t s = 0; s < 4; ++s) {
    const schedule::deepspeed::Position at{.microbatches = 4, .stages = 4, .stage = s};
    const auto buffers = train_buffers(at, schedule::deepspeed::TrainVersion::Later);
    schedule.stages.push_back({.buffers = buffers, .steps = {}});
    for (std::int32_t t = 0; t < train_step_count(at); ++t) {
      schedule.stages.back().steps.push_back(
          train_step(at, t, schedule::deepspeed::TrainVersion::Original, buffers));
    }
  }
  EXPECT_EQ(objections(schedule),
            "rank 1 step 7: RecvActivation(buffer_id=0) overwrites the input of microbatch 0: its "
            "gradient is still to be sent [S066]\n"
            "rank 2 step 6: RecvActivation(buffer_id=0) overwrites the input of microbatch 0: its "
            "gradient is still to be sent [S066]\n"
            "rank 2 step 8: RecvActivation(buffer_id=1) overwrites the input of microbatch 1: its "
            "gradient is still to be sent [S066]");
}

TEST(VerifyStepped, EndsInDifferentStepsAreNamedWithBothStages) {
  EXPECT_EQ(objections(stepped({"LoadMicroBatch0 ForwardPass0 SendActivation0;",
                                ";RecvActivation0 LoadMicroBatch0 ForwardPass0"})),
            "rank 0 step 0: SendActivation(buffer_id=0) waits for RecvActivation(buffer_id=0) of "
            "stage 1, which is in step 1 [S060]");
  EXPECT_EQ(objections(stepped({"LoadMicroBatch0 ForwardPass0;SendActivation0",
                                "RecvActivation0;LoadMicroBatch0 ForwardPass0"})),
            "rank 1 step 0: RecvActivation(buffer_id=0) waits for SendActivation(buffer_id=0) of "
            "stage 0, which is in step 1 [S060]");
}

TEST(VerifyStepped, AStageThatIsAStepLateIsToldMessageByMessage) {
  EXPECT_EQ(objections(stepped({"LoadMicroBatch0 ForwardPass0 SendActivation0;LoadMicroBatch1 "
                                "ForwardPass1 SendActivation1;",
                                ";RecvActivation0 LoadMicroBatch0 ForwardPass0;RecvActivation1 "
                                "LoadMicroBatch1 ForwardPass1"})),
            "rank 0 step 0: SendActivation(buffer_id=0) waits for RecvActivation(buffer_id=0) of "
            "stage 1, which is in step 1 [S060]\n"
            "rank 0 step 1: SendActivation(buffer_id=1) waits for RecvActivation(buffer_id=1) of "
            "stage 1, which is in step 2 [S060]");
}

TEST(VerifyStepped, AMissingEndDoesNotShiftTheOthers) {
  EXPECT_EQ(objections(stepped({"LoadMicroBatch0 ForwardPass0;LoadMicroBatch1 ForwardPass1 "
                                "SendActivation1",
                                "RecvActivation0 LoadMicroBatch0 ForwardPass0;RecvActivation1 "
                                "LoadMicroBatch1 ForwardPass1"})),
            "rank 1 step 0: RecvActivation(buffer_id=0) waits for a SendActivation of stage 0 that "
            "never comes [S060]");
}

TEST(VerifyStepped, EndsThatNeverComeAreNamedWithTheStageThatLacksThem) {
  EXPECT_EQ(
      objections(stepped({"LoadMicroBatch0 ForwardPass0 SendActivation0", "LoadMicroBatch0"})),
      "rank 0 step 0: SendActivation(buffer_id=0) waits for a RecvActivation of stage 1 that "
      "never comes [S060]\n"
      "rank 1 step 0: LoadMicroBatch(buffer_id=0) is used by nobody [S068]");
  EXPECT_EQ(objections(stepped(
                {"LoadMicroBatch0 ForwardPass0", "RecvActivation0 LoadMicroBatch0 ForwardPass0"})),
            "rank 1 step 0: RecvActivation(buffer_id=0) waits for a SendActivation of stage 0 that "
            "never comes [S060]");
}

TEST(VerifyStepped, CirclesOverThreeStagesAreSpeltOut) {
  // Each stage but the last sends before it receives, in a ring of activation and gradient.
  const auto diagnostics =
      verify_stepped(
          stepped({"LoadMicroBatch0 ForwardPass0 SendActivation0 LoadMicroBatch1 ForwardPass1;"
                   "SendActivation1 RecvGrad0 BackwardPass0",
                   "RecvActivation0 ForwardPass0;SendActivation0 RecvActivation1",
                   ";RecvActivation0 LoadMicroBatch0 ForwardPass0 BackwardPass0 SendGrad0"}))
          .diagnostics;
  bool found = false;
  for (const Diagnostic& diagnostic : diagnostics) found |= diagnostic.code == Code::ScatteredEnds;
  EXPECT_TRUE(found);  // The gradient of stage 2 is not received by stage 1.

  const auto circle =
      verify_stepped(stepped({"LoadMicroBatch0 ForwardPass0 SendActivation0 ReduceTiedGrads",
                              "RecvActivation0 ForwardPass0 ReduceTiedGrads SendActivation0",
                              "ReduceTiedGrads RecvActivation0 LoadMicroBatch0 ForwardPass0"}))
          .diagnostics;
  EXPECT_EQ(objections(stepped({"LoadMicroBatch0 ForwardPass0 SendActivation0 ReduceTiedGrads",
                                "RecvActivation0 ForwardPass0 SendActivation0 ReduceTiedGrads",
                                "ReduceTiedGrads RecvActivation0 LoadMicroBatch0 ForwardPass0"})),
            "rank 1 step 0: SendActivation(buffer_id=0) waits for stage 2, which waits at "
            "ReduceTiedGrads(): deadlock [S061]");
  EXPECT_TRUE(circle.empty());
}

TEST(VerifyStepped, TiedReductionsMeetOnTheStagesThatHoldTheModule) {
  const SteppedSchedule schedule = stepped({
      "LoadMicroBatch0 ForwardPass0 SendActivation0;RecvGrad0 BackwardPass0;ReduceTiedGrads "
      "ReduceGrads OptimizerStep",
      "RecvActivation0 ForwardPass0 SendActivation0;RecvGrad0 BackwardPass0 SendGrad0;"
      "ReduceGrads OptimizerStep",
      "RecvActivation0 LoadMicroBatch0 ForwardPass0 BackwardPass0;SendGrad0;ReduceTiedGrads "
      "ReduceGrads OptimizerStep",
  });
  EXPECT_EQ(objections(schedule),
            "rank 0 step 2: ReduceTiedGrads() waits for a ReduceTiedGrads of stage 1 that never "
            "comes [S060]");
  EXPECT_EQ(objections(schedule, {.tied_stages = {{StageId(2), StageId(0)}}}), "");
  EXPECT_EQ(objections(schedule, {.tied_stages = {std::vector<StageId>{}}}), "");
  EXPECT_EQ(objections(schedule, {.tied_stages = {{StageId(0), StageId(1)}}}),
            "rank 0 step 2: ReduceTiedGrads() waits for a ReduceTiedGrads of stage 1 that never "
            "comes [S060]\n"
            "rank 1 step 2: OptimizerStep() has no ReduceTiedGrads() before it [S069]");
  EXPECT_THROW(verify_stepped(schedule, {.tied_stages = {{StageId(3)}}}), ScheduleError);
}

TEST(VerifyStepped, TheSpareOrderOfTiedReductionsDeadlocksAcrossSteps) {
  EXPECT_EQ(objections(stepped({
                "LoadMicroBatch0 ForwardPass0 SendActivation0;RecvGrad0 BackwardPass0 "
                "ReduceTiedGrads;ReduceGrads OptimizerStep",
                "RecvActivation0 LoadMicroBatch0 ForwardPass0 BackwardPass0;SendGrad0;"
                "ReduceTiedGrads ReduceGrads OptimizerStep",
            })),
            "rank 0 step 1: ReduceTiedGrads() waits for ReduceTiedGrads() of stage 1, which is in "
            "step 2 [S060]");
}

TEST(VerifyStepped, ObjectionsOfTheIRComeWithoutOthers) {
  EXPECT_EQ(objections(stepped({"LoadMicroBatch0 ForwardPass0;LoadMicroBatch1 ForwardPass1 "
                                "BackwardPass0"})),
            "0B1 is missing [S004]");
  EXPECT_EQ(objections(SteppedSchedule{.name = "none", .microbatches = 1, .stages = {}}),
            "the schedule is empty [S004]");
}

enum class Mutation { Delete, Duplicate, Swap, Move, Rebuffer };
constexpr Mutation kMutations[] = {Mutation::Delete, Mutation::Duplicate, Mutation::Swap,
                                   Mutation::Move, Mutation::Rebuffer};

SteppedSchedule good_schedule(Random& random) {
  const schedule::Sizes sizes{.ranks = random.between(1, 4), .microbatches = random.between(1, 6)};
  switch (random.between(0, 3)) {
    case 0:
      return make_stepped("train", sizes);
    case 1:
      return make_stepped("train_later", sizes);
    case 2:
      return make_stepped("inference", sizes);
    default:
      return schedule::deepspeed::to_stepped(testing_support::random_order_in_steps(random));
  }
}

// Another instruction of the schedule: a stage, a step that is not empty, and an index.
Step& random_step(SteppedSchedule& schedule, Random& random) {
  while (true) {
    auto& steps = schedule.stages[random.index_of(schedule.stages.size())].steps;
    Step& step = steps[random.index_of(steps.size())];
    if (!step.empty()) return step;
  }
}

SteppedSchedule mutate(SteppedSchedule schedule, Mutation mutation, Random& random) {
  Step& step = random_step(schedule, random);
  const std::size_t i = random.index_of(step.size());
  const auto instruction = step[i];
  const auto insert = [&] {
    auto& steps = schedule.stages[random.index_of(schedule.stages.size())].steps;
    Step& into = steps[random.index_of(steps.size())];
    into.insert(into.begin() + random.between(0, static_cast<std::int32_t>(into.size())),
                instruction);
  };
  switch (mutation) {
    case Mutation::Delete:
      step.erase(step.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    case Mutation::Duplicate:
      insert();
      break;
    case Mutation::Swap: {
      Step& other = random_step(schedule, random);
      std::swap(step[i], other[random.index_of(other.size())]);
      break;
    }
    case Mutation::Move:
      step.erase(step.begin() + static_cast<std::ptrdiff_t>(i));
      insert();
      break;
    case Mutation::Rebuffer:
      if (step[i].buffer) *step[i].buffer = random.between(-1, 3);
      break;
  }
  return schedule;
}

TEST(VerifyStepped, AgreesWithAnEngineOnEveryMutant) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  std::set<Code> seen;
  int still_good = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const SteppedSchedule good = good_schedule(random);
    ASSERT_EQ(objections(good), "") << to_text(good);
    ASSERT_EQ(SteppedEngine(good).run(), "") << to_text(good);
    for (const Mutation mutation : kMutations) {
      const SteppedSchedule mutant = mutate(good, mutation, random);
      const auto diagnostics = verify_stepped(mutant).diagnostics;
      const std::string problem = SteppedEngine(mutant).run();
      ASSERT_EQ(diagnostics.empty(), problem.empty())
          << "engine: " << problem << "\nverify: " << objections(mutant) << "\n"
          << to_text(mutant);
      still_good += diagnostics.empty();
      for (const Diagnostic& diagnostic : diagnostics) seen.insert(diagnostic.code);
    }
  }
  for (const Code code :
       {Code::ScatteredEnds, Code::Circle, Code::WrongStage, Code::NoSuchBuffer, Code::NothingThere,
        Code::Overwrites, Code::OtherMicrobatch, Code::Unused, Code::OptimizerOutOfPlace}) {
    EXPECT_TRUE(seen.contains(code)) << to_string(code);
  }
  EXPECT_GT(still_good, 500);
}

}  // namespace
}  // namespace penstock::verify
