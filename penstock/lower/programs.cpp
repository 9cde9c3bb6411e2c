#include "penstock/lower/programs.h"

#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/dialects.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/passes/passes.h"

namespace penstock::lower {
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
  if (program.replicas > 1) {
    throw ScheduleError(
        str("schedule file \"", options.file, "\" has the programs of ", program.replicas,
            " replicas, which are not trained by: expected those of one"),
        {"penstock verify, simulate and schedule take it"});
  }
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
  return with_messages(std::move(program), "penstock");
}

// Fills the programs of a forward pass as if every F took one step: at each, a rank runs the oldest
// microbatch that is there, on the last of its stages that has it.  So microbatches follow each
// other as closely as the placement allows, and few are on the way.
class ForwardOrder {
 public:
  explicit ForwardOrder(schedule::Schedule& forward) : forward_(forward) {}

  // `stages_of` are each rank's, rising.
  void fill(const std::vector<std::vector<std::int32_t>>& stages_of) {
    std::vector<std::int32_t> done(static_cast<std::size_t>(forward_.stages));  // By stage.
    std::int64_t left = std::int64_t{forward_.stages} * forward_.microbatches;
    while (left > 0) {
      std::vector<std::size_t> run;
      for (std::size_t rank = 0; rank < stages_of.size(); ++rank) {
        const auto stage = choose(stages_of[rank], done);
        if (!stage) continue;
        forward_.programs[rank].push_back({.stage = StageId(*stage),
                                           .op = schedule::Op::Forward,
                                           .microbatch = Microbatch(done[index(*stage)])});
        run.push_back(index(*stage));
      }
      for (const std::size_t stage : run) ++done[stage];
      left -= std::ssize(run);
    }
  }

 private:
  static std::size_t index(std::int32_t stage) { return static_cast<std::size_t>(stage); }

  std::optional<std::int32_t> choose(const std::vector<std::int32_t>& stages,
                                     const std::vector<std::int32_t>& done) const {
    std::optional<std::int32_t> best;
    for (const std::int32_t stage : stages) {
      const std::int32_t next = done[index(stage)];
      const bool is_there =
          stage == 0 ? next < forward_.microbatches : next < done[index(stage - 1)];
      if (is_there && (!best || next <= done[index(*best)])) best = stage;
    }
    return best;
  }

  schedule::Schedule& forward_;
};

}  // namespace

verify::VerifiedSchedule training_program(const ProgramOptions& options) {
  return verify::VerifiedSchedule::from(lowered(options));
}

std::string objection_to_training(std::string_view name) {
  try {
    const schedule::Generator& generator = schedule::find_generator(name);
    if (generator.purpose == schedule::Purpose::Train) return "";
    return "it has no backward: it cannot train";
  } catch (const ScheduleError& error) {
    return error.message();
  }
}

schedule::Schedule with_messages(schedule::Schedule order, std::string_view how) {
  if (how != "penstock" && how != "torch") {
    throw ConfigError(str("how is ", json_quote(how), ", must be \"penstock\" or \"torch\""));
  }
  if (schedule::is_lowered(order)) {
    throw ConfigError(str(schedule::title(order), " has messages already"));
  }
  const auto verified = verify::VerifiedSchedule::from(std::move(order));
  return how == "torch" ? schedule::lower_as_torch(verified.schedule())
                        : schedule::lower_communication(verified.schedule());
}

verify::VerifiedSchedule forward_program(const verify::VerifiedSchedule& training,
                                         std::int32_t microbatches) {
  const schedule::Schedule& model = training.schedule();
  schedule::Schedule forward{.name = "forward_only",
                             .purpose = schedule::Purpose::Forward,
                             .stages = model.stages,
                             .microbatches = microbatches};
  forward.programs.resize(model.programs.size());
  std::vector<std::vector<std::int32_t>> stages_of(model.programs.size());
  for (std::int32_t s = 0; s < model.stages; ++s) {
    stages_of[training.rank_of(StageId(s)).index()].push_back(s);
  }
  ForwardOrder(forward).fill(stages_of);
  return verify::VerifiedSchedule::from(schedule::add_send_recv(forward));
}

}  // namespace penstock::lower
