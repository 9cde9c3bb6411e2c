#include "penstock/cli/plan/launch_run.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "penstock/cli/plan/run_log.h"
#include "penstock/core/atomic_file.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/output_lock.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/restarts.h"
#include "penstock/launch/run_clock.h"
#include "penstock/launch/stop_signals.h"
#include "penstock/plan/choose/fewer_ranks.h"
#include "penstock/plan/choose/rerouting.h"
#include "penstock/plan/config/flat.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/schedule/json.h"

namespace penstock::cli {
namespace {

// 0 where there is none, or the directory cannot be read.
std::int64_t newest_step(const std::string& directory) {
  try {
    const auto all = checkpoint::steps_in(directory);
    return all.empty() ? 0 : all.front().step;
  } catch (const CheckpointError&) {
    return 0;
  }
}

// The start that goes on where the newest checkpoint is.
void resume(RankStart& start) {
  constexpr const char* kKey = "checkpoint.resume";
  std::erase_if(start.overrides, [](const config::Override& each) { return each.path == kKey; });
  start.set(kKey, "auto", "--resume");
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
  Starts(const RunToLaunch& run, const launch::LaunchOptions& options, Output& output)
      : run_(run),
        options_(options),
        start_(run.start),
        output_(output),
        log_(run.run, output),
        directory_(config::checkpoint_directory(run.config.checkpoint, run.run)),
        newest_at_start_(newest_step(directory_)),
        restarts_(fresh_restarts()),
        config_(run.config),
        layout_(
            choose::layout_of(run.config, config::resolve_mesh(run.config.mesh, options.nproc))) {
    rerouting_.emplace(run.config, layout_);
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
      if (newest_step(directory_) != newest_at_start_) resume(start_);
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

  launch::LaunchOptions next_start() {
    launch::LaunchOptions start = options_;
    start.environment.emplace_back(launch::kRestartVariable, std::to_string(starts_));
    start.environment.emplace_back(launch::kRunBeganVariable, shortest(began_));
    start.environment.push_back(lock_variable());
    if (saves()) start.stop_note.clear();  // The run says what goes on from where.
    RankStart handed = start_;
    std::ranges::move(config::changes(run_.config, config_, "--elastic"),
                      std::back_inserter(handed.overrides));
    handed_on_.emplace(handed);
    start.environment.push_back(handed_on_->variable());
    start.program.push_back(handed.name);  // Shown to those who list processes.
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
    const choose::RunCosts costs(run_.run, choose::program_on(run_.config, layout_).schedule());
    std::optional<choose::TimedLayout> whole;
    for (std::int64_t ranks = was_of_use ? most : most + 1; ranks >= least && !whole; --ranks) {
      whole = choose::layout_on(ranks, start_.name, run_.config, layout_, costs);
    }
    if (was_of_use && go_on_in_places(most, whole, costs)) return true;
    rerouted_at_.reset();
    if (!whole) {
      const std::int32_t sharers = layout_.mesh.size(mesh::Role::SameLayers);
      tell(str("no layout of ", most > least ? str(least, " to ") : "", most,
               most == 1 ? " rank" : " ranks",
               sharers > 1 ? str(", ", sharers, " to a layer,") : "",
               " takes as many samples a step"));
      return false;
    }
    tell(str("going on with ", counted(whole->layout.mesh.size(), "rank"), ": ",
             choose::change_text(layout_, whole->layout)));
    begin_with(whole->layout);
    layout_ = whole->layout;
    rerouting_.emplace(run_.config, layout_);
    return true;
  }

  // Whether all `ranks` that are left go on by a rerouted program.
  bool go_on_in_places(std::int64_t ranks, const std::optional<choose::TimedLayout>& whole,
                       const choose::RunCosts& costs) {
    if (!rerouting_->why_not().empty()) return false;
    tell(str("looking for a program of ", ranks, ranks == 1 ? " rank" : " ranks",
             " in their places"));
    try {
      const choose::Rerouted rerouted = rerouting_->on(ranks, whole, costs);
      if (!rerouted.is_faster()) {
        tell(str("it is not faster: ", choose::times_text(rerouted)));
        return false;
      }
      begin_rerouted(ranks, rerouted);
      return true;
    } catch (const Error& error) {
      tell(str("there is none: ", error.message()));
      return false;
    }
  }

  void begin_rerouted(std::int64_t ranks, const choose::Rerouted& rerouted) {
    const std::string file = str(run_.run, "/rerouted-", ranks, ".json");
    write_atomically(file, {schedule::to_json(rerouted.program.schedule())});
    tell(str("going on with ", counted(ranks, "rank"), ": ", choose::text_of(rerouted, layout_)));
    begin_with(choose::layout_of(rerouted, layout_, file));
    rerouted_at_ = newest_step(directory_);
  }

  // The next start has this layout.
  void begin_with(const choose::Layout& layout) {
    config_ = choose::with_layout(run_.config, layout);
    inject::keep_ranks(start_.faults, layout.mesh.size());
    options_.nproc = static_cast<int>(layout.mesh.size());
    restarts_ = fresh_restarts();
  }

  void tell(const std::string& text) { output_.write(str("penstock: ", text, "\n")); }

  const RunToLaunch& run_;
  launch::LaunchOptions options_;
  RankStart start_;  // What the next start begins with, but for its layout.
  std::optional<HandedOn> handed_on_;
  Output& output_;
  RunLog log_;
  const std::string directory_;
  const std::int64_t newest_at_start_;
  launch::Restarts restarts_;
  config::Config config_;  // The next start's.
  // Whole replicas: the layout of the next start, or of the start before ranks were lost.
  choose::Layout layout_;
  std::optional<choose::Rerouting> rerouting_;  // Made from `layout_`.
  // The newest checkpoint when a rerouted program began, which is the next start's.
  std::optional<std::int64_t> rerouted_at_;
  int starts_ = 0;  // Starts before the next one.
  const double began_ = launch::host_seconds();
};

}  // namespace

int launch_run(const RunToLaunch& run, const launch::LaunchOptions& options, Output& output) {
  return Starts(run, options, output).run();
}

}  // namespace penstock::cli
