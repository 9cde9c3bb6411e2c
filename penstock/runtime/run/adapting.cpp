#include "penstock/runtime/run/adapting.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/adapt/words.h"
#include "penstock/plan/simulate/costs_json.h"
#include "penstock/render/schedule_svg.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/run/timeline.h"

namespace penstock::run {
namespace {

using execute::WaitMark;
using measure::RunEventKind;

// The rounds of a search; later ones find little.
constexpr std::int64_t kRounds = 4;
constexpr double kSecondsMax = 2.0;
constexpr double kShareOfSilence = 0.25;  // Share of the longest time without progress.
constexpr std::string_view kStays = "stays";

// What rank 0 says of a plan: that the program stays, or the gain and the program.
std::string text_of_plan(const adapt::Proposal& proposal) {
  return str(shortest(proposal.gain()), "\n", schedule::to_csv(proposal.program));
}

struct Plan {
  double gain = 0.0;
  schedule::Schedule program;
};

std::optional<Plan> read_plan(const std::string& text) {
  if (text == kStays) return {};
  const std::size_t line = text.find('\n');
  const auto gain = parse_number(text.substr(0, line));
  if (line == std::string::npos || !gain) {
    throw ParseError(str("the plan of rank 0: line 1: expected a number, found ",
                         in_quotes(text.substr(0, line))));
  }
  return Plan{.gain = *gain,
              .program = schedule::parse_csv(std::string_view(text).substr(line + 1), "adapted")};
}

std::vector<std::vector<double>> parts_of(const std::vector<double>& all, std::size_t each) {
  std::vector<std::vector<double>> parts;
  for (auto next = all.begin(); next != all.end(); next += static_cast<std::ptrdiff_t>(each)) {
    parts.emplace_back(next, next + static_cast<std::ptrdiff_t>(each));
  }
  return parts;
}

// Every rank gets the sums over the pipe of all ranks' numbers at each place: those of the ranks
// that have the first part of their layers, of those with the second, and so on.
std::vector<std::vector<double>> sums_over_pipe(train::RankModel& here,
                                                const std::vector<double>& mine,
                                                execute::Progress& progress) {
  const WaitMark wait(progress, "sharing measured costs");
  const mesh::Group& sharing = here.groups().shared_weights;
  const at::Tensor shared = at::zeros({sharing.size() * std::ssize(mine)}, at::kDouble);
  auto* value = shared.data_ptr<double>();
  std::ranges::copy(mine, value + sharing.here * std::ssize(mine));
  here.sums().over_model(shared);
  return parts_of({value, value + shared.numel()}, mine.size());
}

adapt::Settings settings_of(const config::ScheduleConfig& config) {
  return {.change = config.cost_change,
          .adapts = config.adapt ? adapt::Adapts::Yes : adapt::Adapts::No};
}

}  // namespace

Adapting::Adapting(const config::Config& config, c10::Device device, train::Trainer& trainer,
                   comm::Communicator& communicator, execute::Progress& progress,
                   Listeners listeners)
    : config_(config.schedule),
      trainer_(trainer),
      communicator_(communicator),
      progress_(progress),
      listeners_(std::move(listeners)),
      patience_(std::min(kSecondsMax, kShareOfSilence * config.launch.heartbeat_seconds)),
      measures_(config_.window_steps > 0 && device.is_cpu() &&
                trainer.layout().schedule.schedule().replicas == 1),
      no_plans_(
          adapt::objection_to_planning(trainer.layout().schedule, trainer.program().terms().sums)),
      adaptation_(static_cast<std::size_t>(trainer.layout().schedule.schedule().stages),
                  settings_of(config_)) {
  if (!config_.adapt) return;
  const schedule::Schedule& program = trainer_.layout().schedule.schedule();
  if (!device.is_cpu()) {
    throw ConfigError(
        "schedule.adapt = true: the ranks compute on a device, whose times are not measured",
        {"take schedule.adapt = false, or launch.device = \"cpu\""});
  }
  adapts_ = program.ranks() > 1;
  if (!adapts_) {
    if (is_root()) listeners_.tell(str("schedule.adapt = true has no effect: ", *no_plans_));
  } else if (no_plans_) {
    throw ConfigError(str("schedule.adapt = true: ", schedule::title(program),
                          " has no other order: ", *no_plans_),
                      {"take schedule.adapt = false, or another schedule"});
  }
}

std::optional<std::int64_t> Adapting::program() const {
  if (!adapts_) return {};
  return 1 + trainer_.program().changes();
}

void Adapting::resume() {
  if (!adapts_ || trainer_.program().saved().empty()) return;
  const auto objection = [&]() -> std::optional<std::string> {
    try {
      auto program = schedule::parse_csv(trainer_.program().saved(), "adapted");
      const auto next = verify::VerifiedSchedule::from(program);
      if (auto text = adapt::objection_to_change(trainer_.layout().schedule, next,
                                                 trainer_.program().terms())) {
        return text;
      }
      trainer_.program().change(std::move(program));
      return {};
    } catch (const ScheduleError& error) {
      return error.message();
    } catch (const ParseError& error) {
      return error.message();
    }
  }();
  if (!is_root()) return;
  listeners_.tell(objection ? str("the checkpoint's program is not gone on with: ", *objection)
                            : std::string("going on with the program that the run had changed to"));
}

void Adapting::begin_window() {
  const train::Layout& layout = trainer_.layout();
  const Rank rank(trainer_.rank_model().groups().pipe.here);
  window_.emplace(layout.schedule, rank, steady_clock_id());
}

void Adapting::before() {
  is_recording_ = measures_ && !std::exchange(is_first_, false);
  if (!is_recording_) return;
  if (!window_) begin_window();
  trainer_.program().executor().record_next_run();
}

void Adapting::after(std::int64_t step) {
  if (!std::exchange(is_recording_, false)) return;
  window_->add(step, measured_events(trainer_.program().executor(), step, communicator_.rank()));
  if (window_->steps() < config_.window_steps) return;
  const adapt::WindowCosts window = share();
  window_.reset();
  conclude(window);
}

// Each rank puts its numbers where the others have zeros; of replicas, and of ranks that share
// layers, the slower one's count.
adapt::WindowCosts Adapting::share() {
  train::RankModel& here = trainer_.rank_model();
  std::optional<double> latency;
  for (const auto& times : sums_over_pipe(here, window_->message_times(), progress_)) {
    latency = std::max(latency, window_->latency_of(times));  // Absent is less than all.
  }
  adapt::WindowCosts mine = window_->costs();
  const std::int64_t first = mine.first_step, last = mine.last_step;
  if (here.groups().pipe.here == 0) mine.latency = latency;
  const std::vector<double> numbers = adapt::to_numbers(mine);
  const std::vector<double> replicas = here.sums().over_replicas(numbers, "sharing measured costs");
  const std::vector<double> slowest = adapt::slowest(parts_of(replicas, numbers.size()));
  adapt::WindowCosts all =
      adapt::from_numbers(adapt::slowest(sums_over_pipe(here, slowest, progress_)),
                          mine.stages.size(), mine.ranks.size());
  all.first_step = first;
  all.last_step = last;
  return all;
}

void Adapting::tell(const measure::RunEvent& event) {
  if (!is_root()) return;
  listeners_.tell(event.reason);
  listeners_.note(event);
}

void Adapting::conclude(const adapt::WindowCosts& window) {
  const adapt::Outcome outcome = adaptation_.after(window);
  if (is_root()) {
    listeners_.write("costs.json", simulate::to_json(adaptation_.known().costs()) + "\n");
  }
  if (outcome.judged) judge(*outcome.judged, window.last_step);
  if (outcome.told && is_root()) {
    std::string text = adapt::text_of(*outcome.told, window, trainer_.layout().schedule);
    if (!adapts_ && !no_plans_) {
      text += "; " + adapt::text_of_chance(search(), config_.adapt_gain);
    }
    tell({.kind = RunEventKind::CostsChanged, .step = window.last_step, .reason = text});
  }
  if (outcome.is_due && adapts_) change(window.last_step);
}

void Adapting::judge(const adapt::Judgement& judged, std::int64_t step) {
  tell({.kind = RunEventKind::ProgramJudged, .step = step, .reason = adapt::text_of(judged)});
  if (judged.stays) return;
  trainer_.program().change(std::exchange(program_before_, {}));
  adaptation_.went_back();
  is_first_ = true;
}

adapt::Proposal Adapting::search() const {
  const auto begun = std::chrono::steady_clock::now();
  return adapt::propose(
      trainer_.layout().schedule, adaptation_.known().costs(), trainer_.program().terms(),
      {.rounds = kRounds,
       .stop = [&] { return std::chrono::steady_clock::now() - begun > patience_; },
       .progress = [&](const search::Progress&) { progress_.advance(); }});
}

// Writes and tells the change, on rank 0, when all ranks have changed.
void Adapting::announce(const adapt::Proposal& proposal, std::int64_t step) {
  const std::string name = str("schedule-after-", step);
  const verify::VerifiedSchedule& program = trainer_.layout().schedule;
  listeners_.write(name + ".csv", schedule::to_csv(program.schedule()));
  listeners_.write(
      name + ".svg",
      render::schedule_svg(program, simulate::simulate(program, adaptation_.known().costs())));
  tell({.kind = RunEventKind::ProgramChanged,
        .step = step,
        .layout = schedule::title(program.schedule()),
        .reason = adapt::text_of_change(proposal, step + 1),
        .file = name + ".csv"});
}

std::string Adapting::plan_of_root(std::optional<adapt::Proposal>& proposal) {
  const execute::WorkMark work(progress_, "searching for a program");
  proposal = search();
  const double gain = proposal->gain();
  return gain <= 0 || gain < config_.adapt_gain ? std::string(kStays) : text_of_plan(*proposal);
}

void Adapting::change(std::int64_t step) {
  const std::string key = str("plan/", ++plans_);
  std::optional<adapt::Proposal> proposal;  // Absent except on rank 0.
  std::optional<Plan> plan = comm::or_fail(communicator_, [&] {
    if (is_root()) {
      const std::string text = plan_of_root(proposal);
      communicator_.put(key, text);
      return read_plan(text);
    }
    const WaitMark wait(progress_, "waiting for the plan of rank 0");
    return read_plan(communicator_.get(key));
  });
  if (!plan) return;
  program_before_ = trainer_.layout().schedule.schedule();
  trainer_.program().change(std::move(plan->program));
  adaptation_.changed(plan->gain);
  is_first_ = true;
  if (is_root()) announce(*proposal, step);
}

}  // namespace penstock::run
