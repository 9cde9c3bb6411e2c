#include "penstock/cli/plan/rerouting.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "penstock/cli/costs_file.h"
#include "penstock/cli/plan/training_plan.h"
#include "penstock/config/program_of_replicas.h"
#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/lower/programs.h"
#include "penstock/render/number.h"
#include "penstock/search/reorder.h"
#include "penstock/search/search.h"
#include "penstock/simulate/simulate.h"

namespace penstock::cli {
namespace {

using config::RankLayout;
using mesh::Role;
using simulate::Costs;
using verify::PerStage;

constexpr std::size_t kPlacesTried = 4;

verify::VerifiedSchedule program_on(const config::Config& config, const RankLayout& layout) {
  return lower::training_program(program_of(config::with_layout(config, layout), layout.mesh));
}

double of_stage(const PerStage& costs, std::int32_t stage) {
  return costs.at(StageId(stage), Microbatch(0));
}

// The same work on another number of stages: evenly, as a partition would have it.
PerStage dealt_out(const PerStage& costs, std::int32_t before, std::int32_t after) {
  double sum = 0.0;
  for (std::int32_t stage = 0; stage < before; ++stage) sum += of_stage(costs, stage);
  return sum / after;
}

Costs dealt_out(const Costs& costs, std::int32_t before, std::int32_t after) {
  Costs even = costs;
  even.forward = dealt_out(costs.forward, before, after);
  even.input = dealt_out(costs.input, before, after);
  even.weight = dealt_out(costs.weight, before, after);
  if (costs.backward) even.backward = dealt_out(*costs.backward, before, after);
  double most = 0.0;
  for (std::int32_t stage = 0; stage < before; ++stage) {
    most = std::max(most, of_stage(costs.message, stage));
  }
  even.message = most;
  return even;
}

double makespan(const verify::VerifiedSchedule& schedule, const Costs& costs) {
  return simulate::simulate(schedule, costs, simulate::Detail::Totals).makespan;
}

// The places of the pipe, those with the least work first; of equal ones, those in the middle,
// whose ranks wait for longest on both sides.
std::vector<std::int32_t> places_by_work(const verify::VerifiedSchedule& order,
                                         const Costs& costs) {
  const std::int32_t pipe = order.schedule().ranks();
  std::vector<double> work(static_cast<std::size_t>(pipe), 0.0);
  for (std::int32_t s = 0; s < order.schedule().stages; ++s) {
    work[order.rank_of(StageId(s)).index()] +=
        of_stage(costs.forward, s) + of_stage(costs.input, s) + of_stage(costs.weight, s);
  }
  std::vector<std::int32_t> places;
  for (std::int32_t place = 0; place < pipe; ++place) places.push_back(place);
  std::ranges::stable_sort(places, {}, [&](std::int32_t place) {
    return std::pair(work[static_cast<std::size_t>(place)], std::abs(2 * place + 1 - pipe));
  });
  return places;
}

}  // namespace

Rerouting::Rerouting(const config::Config& config, std::string run, const RankLayout& layout)
    : config_(config), run_(std::move(run)), layout_(layout) {}

std::string Rerouting::why_not() const {
  if (layout_.mesh.size(Role::OtherSamples) < 2) {
    return "nobody else has the stages of a single replica";
  }
  if (config_.pipeline.activation_checkpoint_interval > 0) {
    return "split backwards keep what is computed again, and there may be no room for it";
  }
  const bool may_be_tied = config_.model.tie_embeddings || !config_.model.path.empty();
  try {
    config::check_programs(mesh::Programs::OfTheirOwn, config_);
    if (may_be_tied) config::check_uneven_ties(config_.zero_optimization.stage);
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "";
}

// Takes the costs of the last window of steps; without one, every pass of a stage is as long as any
// other.
void Rerouting::measure(const schedule::Schedule& order) {
  if (costs_) return;
  costs_.emplace();
  const std::string file = run_ + "/costs.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return;
  try {
    const Costs measured = read_costs_file(file);
    if (!simulate::misfits(measured, order).empty()) return;  // Costs of other stages.
    costs_ = measured;
    is_measured_ = true;
  } catch (const Error&) {
    return;  // Useless then.
  }
}

// Leaves out the rank, of the places tried, whose loss costs the shortest step.
search::GoingOn Rerouting::leave_out_one_more(const verify::VerifiedSchedule& order) {
  const mesh::Mesh mesh = mesh::make_mesh(layout_.mesh);
  const std::vector<Rank> pipe = mesh.group(Rank(0), Role::Pipe);
  const std::int32_t replicas = layout_.mesh.size(Role::OtherSamples);
  std::optional<search::GoingOn> best;
  std::vector<Rank> chosen;
  std::size_t tried = 0;
  for (const std::int32_t place : places_by_work(order, *costs_)) {
    std::vector<Rank> left = mesh.group(pipe[static_cast<std::size_t>(place)], Role::OtherSamples);
    std::erase_if(left, [&](Rank rank) { return std::ranges::count(left_out_, rank) > 0; });
    if (left.size() == 1) continue;
    if (++tried > kPlacesTried) break;
    std::vector<Rank> lost = left_out_;
    lost.push_back(left.back());
    search::GoingOn found =
        search::reroute({.schedule = order, .replicas = replicas, .lost = lost, .costs = *costs_});
    if (best && best->simulation.makespan <= found.simulation.makespan) continue;
    best = std::move(found);
    chosen = std::move(lost);
  }
  if (!best) throw search::Infeasible("each place of the pipe has a single rank left");
  left_out_ = std::move(chosen);
  return std::move(*best);
}

double Rerouting::step_of(const RankLayout& instead, std::int32_t stages) const {
  const auto program = program_on(config_, instead);
  const std::int32_t its_own = program.schedule().stages;
  return makespan(program, its_own == stages ? *costs_ : dealt_out(*costs_, stages, its_own));
}

Rerouted Rerouting::on(std::int64_t ranks, const std::optional<RankLayout>& instead) {
  const auto order = verify::VerifiedSchedule::from(
      search::compute_order_of(program_on(config_, layout_).schedule()));
  measure(order.schedule());
  const std::int64_t all = layout_.mesh.size();
  PENSTOCK_CHECK(all - std::ssize(left_out_) > ranks, ranks, " of ", all, " ranks");
  std::optional<search::GoingOn> found;
  while (all - std::ssize(left_out_) > ranks) found = leave_out_one_more(order);
  Rerouted rerouted{.program = verify::VerifiedSchedule::from(
                        lower::with_messages(found->schedule.schedule(), "penstock")),
                    .left_out = left_out_,
                    .is_measured = is_measured_};
  rerouted.step = makespan(rerouted.program, found->costs);
  if (instead) rerouted.instead = step_of(*instead, order.schedule().stages);
  return rerouted;
}

RankLayout layout_of(const Rerouted& rerouted, const RankLayout& before) {
  RankLayout layout = before;
  layout.mesh = mesh::Shape{.pipe = rerouted.program.schedule().ranks()};
  layout.batch.microbatches = rerouted.program.schedule().microbatches;
  return layout;
}

std::string text_of(const Rerouted& rerouted, const RankLayout& before) {
  return str("all stay in their places, without rank", rerouted.left_out.size() == 1 ? " " : "s ",
             join(rerouted.left_out, ", "), " of ", mesh::to_string(before.mesh),
             ", whose microbatches other ranks of its stages take; ", before.batch.train_batch_size,
             " samples a step as before; ", times_text(rerouted));
}

std::string times_text(const Rerouted& rerouted) {
  const auto time = [&](double step) {
    return str(render::rounded(step, 1), rerouted.is_measured ? " ms" : " passes of a stage");
  };
  std::string text = str("by simulation ", time(rerouted.step), " a step");
  if (rerouted.instead) text += str(", with whole replicas ", time(*rerouted.instead));
  return text;
}

}  // namespace penstock::cli
