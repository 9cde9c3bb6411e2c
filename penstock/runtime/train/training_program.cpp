#include "penstock/train/training_program.h"

#include <utility>

#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/train/handshake.h"

namespace penstock::train {

lower::Plan lower_here(const Layout& layout, const verify::VerifiedSchedule& schedule,
                       const comm::Communicator& communicator) {
  return lower::lower(schedule, layout.partition, layout.mesh, communicator.rank());
}

TrainingProgram::TrainingProgram(lower::Plan plan, Layout& layout, RankModel& rank_model,
                                 GradientSums sums, comm::Communicator& communicator,
                                 execute::Progress& progress,
                                 std::function<void(const verify::VerifiedSchedule&)> prove)
    : layout_(layout),
      rank_model_(rank_model),
      terms_(adapt::terms_of(layout.schedule, sums == GradientSums::Invariant
                                                  ? adapt::Sums::Invariant
                                                  : adapt::Sums::InOrderOfProgram)),
      communicator_(communicator),
      progress_(progress),
      executor_(rank_model.training_executor(std::move(plan))),
      prove_(std::move(prove)) {}

void TrainingProgram::change(schedule::Schedule program) {
  const execute::WaitMark wait(progress_, "changing the program");
  agree_on(Occasion::Program,
           {{agreement::Fact::Schedule, schedule::title(program)},
            {agreement::Fact::ScheduleProgram, content_hash(schedule::to_csv(program))}},
           communicator_);
  // All ranks find the same from here on.
  auto next = verify::VerifiedSchedule::from(std::move(program));
  if (const auto objection = adapt::objection_to_change(layout_.schedule, next, terms_)) {
    throw ScheduleError(str("program ", schedule::title(next.schedule()),
                            " cannot take the place of ",
                            schedule::title(layout_.schedule.schedule()), ": ", *objection));
  }
  prove_(next);
  lower::Plan plan = lower_here(layout_, next, communicator_);
  communicator_.link(lower::peers(plan));
  earlier_plans_.push_back(executor_->shared_plan());
  executor_ = rank_model_.training_executor(std::move(plan));
  layout_.schedule = std::move(next);
  ++changes_;
  name_ = str("train by program ", changes_);
}

}  // namespace penstock::train
