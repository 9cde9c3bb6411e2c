#include "penstock/cli/plan/launch_run.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "penstock/checkpoint/checkpoint_directory.h"
#include "penstock/cli/plan/run_log.h"
#include "penstock/cli/plan/training_plan.h"
#include "penstock/config/resolve.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/restarts.h"
#include "penstock/launch/stop_signals.h"

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
  }

  int run() {
    const launch::StopSignals signals;  // launch() has its own handlers, and leaves these.
    for (;; ++starts_) {
      const launch::LaunchResult result = launch::launch(next_start());
      if (result.exit_code != 0) log_.ended(result);
      if (result.exit_code == 0 || result.stop_asked) return result.exit_code;
      const auto pause_s = after_failure(result.exit_code);
      if (!pause_s) return result.exit_code;
      log_.restarting(restarts_.in_a_row(), *pause_s, options_.nproc);
      if (const auto code = pause(*pause_s, signals)) return log_.stopped(static_cast<int>(*code));
      if (newest_step(directory_) > newest_at_start_) command_ = resuming(std::move(command_));
    }
  }

 private:
  bool saves() const { return run_.config.checkpoint.saves(); }

  launch::Restarts fresh_restarts() const {
    const std::int64_t most = saves() ? run_.config.launch.restarts : 0;
    return {static_cast<int>(most), newest_step(directory_)};
  }

  launch::LaunchOptions next_start() const {
    launch::LaunchOptions start = options_;
    start.environment.emplace_back(launch::kRestartVariable, std::to_string(starts_));
    if (saves()) start.stop_note.clear();  // The run says what goes on from where.
    for (std::string& word : words_of(command_, run_.run)) start.program.push_back(std::move(word));
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
    if (least == 0) return false;
    for (std::int64_t ranks = options_.nproc - 1; ranks >= least; --ranks) {
      const auto layout = layout_on(ranks, run_.name, run_.config, layout_);
      if (!layout) continue;
      tell(str("going on with ", ranks,
               ranks == 1 ? " rank: " : " ranks: ", config::change_text(layout_, *layout)));
      std::ranges::move(config::overrides_of(*layout), std::back_inserter(command_.overrides));
      inject::keep_ranks(command_.faults, ranks);
      options_.nproc = static_cast<int>(ranks);
      layout_ = *layout;
      restarts_ = fresh_restarts();
      return true;
    }
    const std::int64_t most = options_.nproc - 1;
    if (most >= least) {
      tell(str("no layout of ", most > least ? str(least, " to ") : "", most,
               most == 1 ? " rank" : " ranks", " takes as many samples a step"));
    }
    return false;
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
  RankLayout layout_;  // Of the start that is next.
  int starts_ = 0;     // Before that one.
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
