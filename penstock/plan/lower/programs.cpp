#include "penstock/plan/lower/programs.h"

#include <set>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/dialects.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"

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
  ForwardOrder(schedule::Schedule& forward, const schedule::Homes& homes)
      : forward_(forward),
        stages_of_(forward.programs.size()),
        is_done_(static_cast<std::size_t>(forward.stages),
                 std::vector<bool>(static_cast<std::size_t>(forward.microbatches))) {
    for (std::int32_t s = 0; s < forward.stages; ++s) {
      for (std::int32_t m = 0; m < forward.microbatches; ++m) {
        std::vector<Turns>& stages = stages_of_[homes.of(StageId(s), Microbatch(m)).index()];
        if (stages.empty() || stages.back().stage != StageId(s)) stages.push_back({StageId(s)});
        stages.back().microbatches.emplace_back(m);
      }
    }
  }

  void fill() {
    std::int64_t left = std::int64_t{forward_.stages} * forward_.microbatches;
    while (left > 0) {
      std::vector<Turns*> run;
      for (std::size_t rank = 0; rank < stages_of_.size(); ++rank) {
        Turns* const turns = choose(stages_of_[rank]);
        if (turns == nullptr) continue;
        forward_.programs[rank].push_back({.stage = turns->stage,
                                           .op = schedule::Op::Forward,
                                           .microbatch = turns->microbatches[turns->done]});
        run.push_back(turns);
      }
      for (Turns* const turns : run) {
        is_done_[turns->stage.index()][turns->microbatches[turns->done++].index()] = true;
      }
      left -= std::ssize(run);
    }
  }

 private:
  // The turns of a stage on a rank.
  struct Turns {
    StageId stage;
    std::vector<Microbatch> microbatches = {};  // Rising.
    std::size_t done = 0;
  };

  Turns* choose(std::vector<Turns>& stages) const {
    Turns* best = nullptr;
    for (Turns& turns : stages) {
      if (turns.done == turns.microbatches.size()) continue;
      const Microbatch next = turns.microbatches[turns.done];
      const bool is_there =
          turns.stage.value == 0 || is_done_[turns.stage.index() - 1][next.index()];
      if (is_there && (best == nullptr || next <= best->microbatches[best->done])) best = &turns;
    }
    return best;
  }

  schedule::Schedule& forward_;
  std::vector<std::vector<Turns>> stages_of_;  // Stages of each rank, rising.
  std::vector<std::vector<bool>> is_done_;     // True by stage, then microbatch, once it has run.
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
                             .microbatches = microbatches,
                             .replicas = model.replicas};
  forward.programs.resize(model.programs.size());
  ForwardOrder(forward, training.facts().homes).fill();
  return verify::VerifiedSchedule::from(schedule::add_send_recv(forward));
}

std::int32_t forward_microbatches_min(const verify::VerifiedSchedule& training) {
  const schedule::Homes& homes = training.facts().homes;
  std::set<std::pair<Rank, std::size_t>> all, seen;  // Stages on ranks.
  for (std::size_t way = 0; way < homes.ways(); ++way) {
    for (std::size_t s = 0; s < homes.stages(); ++s) all.emplace(homes.on_way(way, s), s);
  }
  std::int32_t microbatches = 0;
  while (seen.size() < all.size()) {
    const std::size_t way = homes.way_of(Microbatch(microbatches++).index());
    for (std::size_t s = 0; s < homes.stages(); ++s) seen.emplace(homes.on_way(way, s), s);
  }
  return microbatches;
}

}  // namespace penstock::lower
