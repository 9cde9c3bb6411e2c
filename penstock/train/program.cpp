#include "penstock/train/program.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/dialects.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/passes/passes.h"

namespace penstock::train {
namespace {

schedule::Schedule lowered(const ProgramOptions& options) {
  if (options.file.empty()) {
    const std::int32_t its_own = schedule::find_generator(options.schedule).stages_per_rank;
    const schedule::Schedule order = schedule::make_schedule(
        options.schedule, {.ranks = options.ranks,
                           .stages_per_rank = options.stages_per_rank.value_or(its_own),
                           .microbatches = options.microbatches});
    if (order.purpose == schedule::Purpose::Forward) {
      throw ScheduleError(str("schedule ", order.name, " has no backward: it cannot train"));
    }
    return schedule::lower_communication(order);
  }
  schedule::Schedule program = schedule::load_schedule(options.file).schedule;
  if (program.ranks() != options.ranks) {
    throw ScheduleError(str("schedule file \"", options.file, "\" has ", program.ranks(),
                            " rows, the mesh has ", options.ranks,
                            " pipeline ranks: one row per rank"));
  }
  if (program.purpose == schedule::Purpose::Forward) {
    throw ScheduleError(str("schedule file \"", options.file,
                            "\" has no backward: it cannot train; add the B of each F"));
  }
  if (program.microbatches != options.microbatches) {
    throw ScheduleError(str("schedule file \"", options.file, "\" has ", program.microbatches,
                            " microbatches, the batch has ", options.microbatches));
  }
  if (schedule::is_lowered(program)) return program;
  return schedule::lower_communication(
      verify::VerifiedSchedule::from(std::move(program)).schedule());
}

}  // namespace

verify::VerifiedSchedule training_program(const ProgramOptions& options) {
  return verify::VerifiedSchedule::from(lowered(options));
}

verify::VerifiedSchedule forward_program(const verify::VerifiedSchedule& training,
                                         std::int32_t microbatches) {
  const schedule::Schedule& model = training.schedule();
  schedule::Schedule forward{.name = "forward_only",
                             .purpose = schedule::Purpose::Forward,
                             .stages = model.stages,
                             .microbatches = microbatches};
  forward.programs.resize(model.programs.size());
  for (std::int32_t m = 0; m < microbatches; ++m) {
    for (std::int32_t s = 0; s < model.stages; ++s) {
      forward.programs[training.rank_of(StageId(s)).index()].push_back(
          {.stage = StageId(s), .op = schedule::Op::Forward, .microbatch = Microbatch(m)});
    }
  }
  return verify::VerifiedSchedule::from(schedule::add_send_recv(forward));
}

}  // namespace penstock::train
