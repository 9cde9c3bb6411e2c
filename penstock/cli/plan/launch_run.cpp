#include "penstock/cli/plan/launch_run.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "penstock/checkpoint/checkpoint_directory.h"
#include "penstock/cli/plan/rerouting.h"
#include "penstock/cli/plan/run_log.h"
#include "penstock/cli/plan/training_plan.h"
#include "penstock/config/resolve.h"
#include "penstock/core/atomic_file.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/output_lock.h"
#include "penstock/core/text.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/restarts.h"
#include "penstock/launch/run_clock.h"
#include "penstock/launch/stop_signals.h"
#include "penstock/schedule/json.h"

namespace penstock::cli {
namespace {

using config::RankLayout;

// 0 where there is none, or the directory cannot be read.
std::int64_t newest_step(const std::string& directory) {
  try {
    const auto all = checkpoint::steps_in(directory);
    return all.empty() ? 0 : all.front().step;
  } catch (const CheckpointError&) {
    return 0;
  }
}

// The command that goes on where the newest checkpoint is.
TrainCommand resuming(TrainCommand command) {
  constexpr const char* kKey = "checkpoint.resume";
  std::erase_if(command.overrides, [](const config::Override& each) { return each.path == kKey; });
  command.overrides.push_back({.path = kKey, .value = "auto", .origin = "--resume"});
  return command;
}

// Waits for `seconds`.  Returns the code to end with, if the process is asked to stop until then.
std::optional<ExitCode> pause(double seconds, const launch::StopSignals& signals) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    if (const auto code = signals.requested()) return code;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return signals.requested();
}

// All starts of one run.
class Starts {
 public:
  Starts(const RunToLaunch& run, const launch::LaunchOptions& options, TrainCommand command,
         Output& output)
      : run_(run),
        options_(options),
        command_(std::move(command)),
        output_(output),
        log_(run.run, output),
        directory_(config::checkpoint_directory(run.config.checkpoint, run.run)),
        newest_at_start_(newest_step(directory_)),
        restarts_(fresh_restarts()),
        layout_{.mesh = config::resolve_mesh(run.config.mesh, options.nproc)} {
    layout_.batch = config::resolve_batch(run.config.batch, layout_.mesh);
    rerouting_.emplace(run.config, run.run, layout_);
  }

  int run() {
    const launch::StopSignals signals;  // launch() has its own handlers, and leaves these.
    for (;; ++starts_) {
      const launch::LaunchResult result = launch::launch(next_start());
      if (result.exit_code != 0) log_.ended(result);
      if (result.exit_code == 0 || result.stop_asked) return result.exit_code;
      if (saves() && is_time_over() && launch::Restarts::may_pass(result.exit_code)) {
        tell("run.minutes are over: the run is not started again");
        return log_.stopped(static_cast<int>(ExitCode::Preempted), "run.minutes are over");
      }
      const auto pause_s = after_failure(result.exit_code);
      if (!pause_s) return result.exit_code;
      log_.restarting(restarts_.in_a_row(), *pause_s, options_.nproc);
      if (const auto code = pause(*pause_s, signals)) {
        return log_.stopped(static_cast<int>(*code), "as asked, before it was started again");
      }
      // The newest one may have an earlier step, if this run began before what it found there.
      if (newest_step(directory_) != newest_at_start_) command_ = resuming(std::move(command_));
    }
  }

 private:
  bool saves() const { return run_.config.checkpoint.saves(); }

  bool is_time_over() const {
    const double minutes = run_.config.run.minutes;
    return minutes > 0 && launch::host_seconds() - began_ >= 60 * minutes;
  }

  launch::Restarts fresh_restarts() const {
    const std::int64_t most = saves() ? run_.config.launch.restarts : 0;
    return {static_cast<int>(most), newest_step(directory_)};
  }

  launch::LaunchOptions next_start() const {
    launch::LaunchOptions start = options_;
    start.environment.emplace_back(launch::kRestartVariable, std::to_string(starts_));
    start.environment.emplace_back(launch::kRunBeganVariable, shortest(began_));
    start.environment.push_back(lock_variable());
    if (saves()) start.stop_note.clear();  // The run says what goes on from where.
    TrainCommand command = command_;
    std::ranges::copy(layout_words_, std::back_inserter(command.overrides));
    for (std::string& word : words_of(command, run_.run)) start.program.push_back(std::move(word));
    return start;
  }

  // Seconds until the next start; absent: there is none.
  std::optional<double> after_failure(int exit_code) {
    const auto pause_s = restarts_.after_failure(exit_code, newest_step(directory_));
    if (pause_s) {
      tell(str("starting the run again", *pause_s > 0 ? str(" in ", shortest(*pause_s), " s") : "",
               " (", restarts_.in_a_row(), " of ", restarts_.most(), " without a new checkpoint)"));
      return pause_s;
    }
    // A device that is gone is its rank's own error.
    const bool is_of_ranks =
        launch::Restarts::may_pass(exit_code) || exit_code == static_cast<int>(ExitCode::Failure);
    return is_of_ranks && saves() && go_on_with_fewer() ? std::optional(0.0) : std::nullopt;
  }

  // Whether there is a smaller layout, which then is that of the next start.
  bool go_on_with_fewer() {
    const std::int64_t least = run_.config.launch.ranks_min;
    const std::int64_t most = options_.nproc - 1;
    if (least == 0 || most < least) return false;
    // There may have been no room for it: the same ranks then try whole replicas.
    const bool was_of_use = !rerouted_at_ || newest_step(directory_) != *rerouted_at_;
    std::optional<RankLayout> whole;
    for (std::int64_t ranks = was_of_use ? most : most + 1; ranks >= least && !whole; --ranks) {
      whole = layout_on(ranks, run_.name, run_.config, layout_);
    }
    if (was_of_use && go_on_in_places(most, whole)) return true;
    rerouted_at_.reset();
    if (!whole) {
      tell(str("no layout of ", most > least ? str(least, " to ") : "", most,
               most == 1 ? " rank" : " ranks", " takes as many samples a step"));
      return false;
    }
    const std::int64_t ranks = whole->mesh.size();
    tell(str("going on with ", ranks,
             ranks == 1 ? " rank: " : " ranks: ", config::change_text(layout_, *whole)));
    begin_with(ranks, config::overrides_of(*whole));
    layout_ = *whole;
    rerouting_.emplace(run_.config, run_.run, layout_);
    return true;
  }

  // Whether all `ranks` that are left go on by a rerouted program.
  bool go_on_in_places(std::int64_t ranks, const std::optional<RankLayout>& whole) {
    if (!rerouting_->why_not().empty()) return false;
    tell(str("looking for a program of ", ranks, ranks == 1 ? " rank" : " ranks",
             " in their places"));
    try {
      const Rerouted rerouted = rerouting_->on(ranks, whole);
      if (!rerouted.is_faster()) {
        tell(str("it is not faster: ", times_text(rerouted)));
        return false;
      }
      begin_rerouted(ranks, rerouted);
      return true;
    } catch (const Error& error) {
      tell(str("there is none: ", error.message()));
      return false;
    }
  }

  void begin_rerouted(std::int64_t ranks, const Rerouted& rerouted) {
    const std::string file = str(run_.run, "/rerouted-", ranks, ".json");
    write_atomically(file, {schedule::to_json(rerouted.program.schedule())});
    tell(str("going on with ", counted(ranks, "rank"), ": ", text_of(rerouted, layout_)));
    std::vector<config::Override> words = config::overrides_of(layout_of(rerouted, layout_));
    for (const std::string& word :
         {std::string("schedule.name=null"), std::string("schedule.stages_per_rank=null"),
          "schedule.file=" + json_quote(file)}) {
      words.push_back(config::parse_override(word));
    }
    begin_with(ranks, std::move(words));
    rerouted_at_ = newest_step(directory_);
  }

  // The next start has so many ranks, and these words besides the command's.
  void begin_with(std::int64_t ranks, std::vector<config::Override> words) {
    layout_words_ = std::move(words);
    inject::keep_ranks(command_.faults, ranks);
    options_.nproc = static_cast<int>(ranks);
    restarts_ = fresh_restarts();
  }

  void tell(const std::string& text) { output_.write(str("penstock: ", text, "\n")); }

  const RunToLaunch& run_;
  launch::LaunchOptions options_;
  TrainCommand command_;
  Output& output_;
  RunLog log_;
  const std::string directory_;
  const std::int64_t newest_at_start_;
  launch::Restarts restarts_;
  // Whole replicas: the layout of the next start, or of the start before ranks were lost.
  RankLayout layout_;
  std::vector<config::Override> layout_words_;  // Words that give the layout of the next start.
  std::optional<Rerouting> rerouting_;          // Made from `layout_`.
  // The newest checkpoint when a rerouted program began, of the start that is next.
  std::optional<std::int64_t> rerouted_at_;
  int starts_ = 0;  // Starts before the next one.
  const double began_ = launch::host_seconds();
};

}  // namespace

std::optional<RankLayout> layout_on(std::int64_t ranks, const std::string& name,
                                    const config::Config& config, const RankLayout& before) {
  for (const RankLayout& layout : config::layouts_on(ranks, before)) {
    try {
      check_plan(name, config::with_layout(config, layout), layout.mesh);
      return layout;
    } catch (const Error&) {
      continue;  // No schedule for so many stages or microbatches.
    }
  }
  return std::nullopt;
}

int launch_run(const RunToLaunch& run, const launch::LaunchOptions& options, TrainCommand command,
               Output& output) {
  return Starts(run, options, std::move(command), output).run();
}

}  // namespace penstock::cli
