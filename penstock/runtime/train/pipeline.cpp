#include "penstock/runtime/train/pipeline.h"

#include <algorithm>
#include <numeric>

#include "penstock/core/check.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/parameters/sums_when_final.h"

namespace penstock::train {
namespace {

verify::VerifiedSchedule proved(schedule::Schedule program) {
  if (program.replicas > 1) {
    throw ScheduleError(str(title(program), " has the programs of several replicas, which are not ",
                            "trained by: expected those of one"));
  }
  if (!schedule::is_lowered(program))
    program = lower::with_messages(std::move(program), "penstock");
  return verify::VerifiedSchedule::from(std::move(program));
}

mesh::Mesh mesh_of(const schedule::Schedule& program, std::int32_t replicas,
                   std::int32_t world_size) {
  const mesh::Shape shape{.pipe = program.ranks(), .data = replicas};
  if (replicas >= 1 && shape.size() == world_size) return mesh::make_mesh(shape);
  const std::string times = replicas == 1 ? "" : str(" x ", replicas, " replicas");
  throw ConfigError(str(schedule::title(program), " is for ", counted(program.ranks(), "rank"),
                        times, ", the group has ", world_size));
}

}  // namespace

Pipeline::Pipeline(schedule::Schedule program, std::vector<PipelineStage> stages,
                   std::vector<Tie> ties, const Facts& facts, comm::Communicator& communicator,
                   std::int32_t replicas, parameters::RankParameters* replicated)
    : communicator_(communicator),
      replicated_(replicated),
      schedule_(proved(std::move(program))),
      given_(std::move(stages)),
      mesh_(mesh_of(schedule_.schedule(), replicas, communicator.world_size())),
      partition_(partition::one_layer_each(schedule_.schedule().stages)),
      activations_(std::make_shared<stage::ActivationCount>()) {
  agree_on(Occasion::Engine, facts_of(schedule_) + facts, communicator_);
  std::ranges::sort(given_, {}, &PipelineStage::stage);
  check_stages();
  if (replicated_ != nullptr) {
    PENSTOCK_CHECK(replicated_->sets() == given_.size() + 1, replicated_->sets(), " sets");
    for (std::size_t i = 0; i < given_.size(); ++i) {
      given_[i].hooks =
          std::make_shared<parameters::SumsWhenFinal>(replicated_->hooks(i), given_[i].may_nest);
    }
  }
  std::vector<nn::LayerSpec> model;
  for (std::int32_t s = 0; s < schedule_.schedule().stages; ++s) {
    model.push_back({.meta = {.name = str("stage ", s), .type = "Stage"}});
  }
  for (const PipelineStage& given : given_) {
    model[given.stage.index()].make = [layer = given.layer] { return layer; };
    stages_.emplace_back(given.stage, model, given.stage.value, given.stage.value + 1, /*seed=*/0,
                         activations_, stage::Checkpointing{},
                         stage::Making{.device = given.device});
  }
  train_ = make_executor(schedule_, /*with_hooks=*/true);
  communicator_.link(lower::peers(train_->plan()));
  if (replicas > 1) {
    const std::int32_t replica = mesh_.index(communicator_.rank(), mesh::Role::OtherSamples);
    for (Tie& tie : ties) tie.name = str(tie.name, " of replica ", replica);
  }
  ties_.emplace(ties, communicator_);
}

Pipeline::~Pipeline() = default;

void Pipeline::check_stages() const {
  const Rank rank = communicator_.rank();
  const Rank of_schedule(mesh_.index(rank, mesh::Role::Pipe));
  std::vector<StageId> here;
  for (std::int32_t s = 0; s < schedule_.schedule().stages; ++s) {
    if (schedule_.rank_of(StageId(s)) == of_schedule) here.push_back(StageId(s));
  }
  std::vector<StageId> given;
  for (const PipelineStage& each : given_) {
    given.push_back(each.stage);
    if (each.device == given_.front().device) continue;
    throw ConfigError(penstock::str("stage ", each.stage, " is on ", each.device, ", stage ",
                                    given_.front().stage, " on ", given_.front().device,
                                    ": a rank has one device"));
  }
  if (given == here) return;
  throw ConfigError(str(schedule::title(schedule_.schedule()), " has stages ", join(here, ", "),
                        " on rank ", rank, ", which was given stages ", join(given, ", ")));
}

std::unique_ptr<execute::Executor> Pipeline::make_executor(const verify::VerifiedSchedule& schedule,
                                                           bool with_hooks) {
  static execute::StageHooks nothing;
  std::vector<stage::Stage*> chunks;
  std::vector<execute::StageHooks*> hooks;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    chunks.push_back(&stages_[i]);
    hooks.push_back(with_hooks && given_[i].hooks ? given_[i].hooks.get() : &nothing);
  }
  return std::make_unique<execute::Executor>(
      lower::lower(schedule, partition_, mesh_, communicator_.rank()), std::move(chunks),
      std::move(hooks), communicator_, progress_);
}

template <class Run>
execute::StepResult Pipeline::running(const char* name, const Run& run) {
  return replicated_ == nullptr ? run() : replicated_->run(name, run);
}

// What several stages add to is final when the program and the ties' sums are over.
void Pipeline::sum_shared(double divisor) {
  if (replicated_ == nullptr) return;
  parameters::SumsWhenFinal shared(replicated_->hooks(given_.size()));
  shared.before_last_backward(divisor);
  shared.after_backward(/*microbatch=*/0);
  shared.finish();
}

execute::StepResult Pipeline::run(const execute::StepInputs& inputs) {
  progress_.step.fetch_add(1, std::memory_order_relaxed);
  comm::or_fail(communicator_, [this] {
    if (replicated_ != nullptr) replicated_->changes().take_over();
    ties_->check_forms();
  });
  return running("train", [&] {
    ties_->begin();
    execute::StepResult result = train_->run(inputs);
    ties_->sum();
    sum_shared(inputs.gradient_divisor);
    return result;
  });
}

execute::StepResult Pipeline::evaluate(const execute::StepInputs& inputs,
                                       std::optional<std::int32_t> microbatches) {
  const std::int32_t count = microbatches.value_or(schedule_.schedule().microbatches);
  if (!evaluate_ || evaluate_->plan().microbatches != count) {
    evaluate_ = make_executor(lower::forward_program(schedule_, count), replicated_ != nullptr);
  }
  return running("evaluate", [&] { return evaluate_->run(inputs); });
}

}  // namespace penstock::train
