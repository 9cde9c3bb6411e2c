#include "penstock/runtime/execute/stage_hooks.h"

#include <ATen/ops/rand.h>

#include "penstock/core/text.h"
#include "penstock/runtime/nn/mlp.h"
#include "tests/execute/pipeline.h"

namespace penstock::execute {
namespace {

constexpr std::int64_t kWidth = 4;

// Writes down what it is called for, among all stages of a rank.
class Recorded : public StageHooks {
 public:
  Recorded(StageId stage, std::vector<std::string>& calls) : stage_(stage), calls_(calls) {}
  void unshard() override { record("unshard"); }
  void reshard() override { record("reshard"); }
  void before_last_backward(double /*divisor*/) override { record("last"); }
  void reduce(std::optional<Microbatch> microbatch) override {
    record(microbatch ? str("reduce ", *microbatch) : "reduce");
  }
  void finish() override { record("finish"); }

 private:
  void record(const std::string& what) { calls_.push_back(str(stage_, " ", what)); }
  StageId stage_;
  std::vector<std::string>& calls_;
};

// The calls of one step of a program of one rank.
std::string calls_of(const std::string& program) {
  const auto schedule = verify::VerifiedSchedule::from(schedule::parse_csv(program, "test"));
  const schedule::Schedule& sizes = schedule.schedule();
  const auto model = nn::mlp_layers(kWidth, sizes.stages);
  const auto partition = cut(model, sizes.stages);
  const auto count = std::make_shared<stage::ActivationCount>();
  std::vector<std::string> calls;
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    std::vector<std::unique_ptr<stage::Stage>> stages;
    std::vector<std::unique_ptr<Recorded>> recorded;
    std::vector<stage::Stage*> chunks;
    std::vector<StageHooks*> hooks;
    for (std::int32_t s = 0; s < sizes.stages; ++s) {
      const StageId id(s);
      stages.push_back(std::make_unique<stage::Stage>(id, model, partition.first_layer(id),
                                                      partition.end_layer(id), kSeed, count));
      recorded.push_back(std::make_unique<Recorded>(id, calls));
      chunks.push_back(stages.back().get());
      hooks.push_back(recorded.back().get());
    }
    Progress progress;
    Executor executor(lower::lower(schedule, partition, mesh::make_mesh(1, {}), Rank(0)), chunks,
                      hooks, communicator, progress);
    StepInputs step{.loss = mean_squared_error};
    for (std::int32_t m = 0; m < sizes.microbatches; ++m) {
      step.inputs.push_back(at::rand({2, kWidth}));
      step.targets.push_back(at::rand({2, kWidth}));
    }
    executor.run(step);
  });
  return join(calls, ", ");
}

TEST(StageHooks, AreCalledAtTheActionsOfTheirStage) {
  EXPECT_EQ(calls_of("0UNSHARD,0F0,1UNSHARD,1F0,0F1,0RESHARD,1F1,1B1,1B0,1REDUCE_GRAD,1RESHARD,"
                     "0UNSHARD,0B0,0B1,0REDUCE_GRAD,0RESHARD\n"),
            "0 unshard, 1 unshard, 0 reshard, 1 last, 1 reduce, 1 reshard, "
            "0 unshard, 0 last, 0 reduce, 0 reshard, 0 finish, 1 finish");
}

TEST(StageHooks, HearOfTheLastWeightGradientsBeTheyABOrAW) {
  EXPECT_EQ(calls_of("0F0,0F1,0I0,0I1,0W1,0REDUCE_GRAD1,0W0,0REDUCE_GRAD0\n"),
            "0 reduce 1, 0 last, 0 reduce 0, 0 finish");
  EXPECT_EQ(calls_of("0F0,0F1,0I0,0W0,0B1\n"), "0 last, 0 finish");
  EXPECT_EQ(calls_of("0F0,0F1,0I0,0B1,0W0\n"), "0 last, 0 finish");
}

TEST(StageHooks, OfAForwardOnlyProgramHearOfTheWeightsAlone) {
  EXPECT_EQ(calls_of("0UNSHARD,0F0,0F1,0RESHARD\n"), "0 unshard, 0 reshard, 0 finish");
}

}  // namespace
}  // namespace penstock::execute
