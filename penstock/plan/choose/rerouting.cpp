#include "penstock/plan/choose/rerouting.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/program_of_replicas.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/search/reorder.h"
#include "penstock/plan/search/search.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

using mesh::Role;
using simulate::Costs;

constexpr std::size_t kPlacesTried = 4;

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
    const StageId stage(s);
    work[order.rank_of(stage).index()] += of_stage(costs.forward, stage) +
                                          of_stage(costs.input, stage) +
                                          of_stage(costs.weight, stage);
  }
  std::vector<std::int32_t> places;
  for (std::int32_t place = 0; place < pipe; ++place) places.push_back(place);
  std::ranges::stable_sort(places, {}, [&](std::int32_t place) {
    return std::pair(work[static_cast<std::size_t>(place)], std::abs(2 * place + 1 - pipe));
  });
  return places;
}

}  // namespace

Rerouting::Rerouting(const config::Config& config, const Layout& layout)
    : config_(config), layout_(layout) {}

std::string Rerouting::why_not() const {
  if (layout_.mesh.size(Role::OtherSamples) < 2) {
    return "nobody else has the stages of a single replica";
  }
  if (layout_.mesh.size(Role::SameLayers) > 1) {
    return "ranks that share layers run one program, and a rerouted one has whole layers";
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

// Leaves out the rank, of the places tried, whose loss costs the shortest step.
search::RemainingRun Rerouting::leave_out_one_more(const verify::VerifiedSchedule& order,
                                                   const Costs& costs) {
  const mesh::Mesh mesh = mesh::make_mesh(layout_.mesh);
  const std::vector<Rank> pipe = mesh.group(Rank(0), Role::Pipe);
  const std::int32_t replicas = layout_.mesh.size(Role::OtherSamples);
  std::optional<search::RemainingRun> best;
  std::vector<Rank> chosen;
  std::size_t tried = 0;
  for (const std::int32_t place : places_by_work(order, costs)) {
    std::vector<Rank> left = mesh.group(pipe[static_cast<std::size_t>(place)], Role::OtherSamples);
    std::erase_if(left, [&](Rank rank) { return std::ranges::count(left_out_, rank) > 0; });
    if (left.size() == 1) continue;
    if (++tried > kPlacesTried) break;
    std::vector<Rank> lost = left_out_;
    lost.push_back(left.back());
    search::RemainingRun found =
        search::reroute({.schedule = order, .replicas = replicas, .lost = lost, .costs = costs});
    if (best && best->simulation.makespan <= found.simulation.makespan) continue;
    best = std::move(found);
    chosen = std::move(lost);
  }
  if (!best) throw search::Infeasible("each place of the pipe has a single rank left");
  left_out_ = std::move(chosen);
  return std::move(*best);
}

Rerouted Rerouting::on(std::int64_t ranks, const std::optional<TimedLayout>& instead,
                       const RunCosts& costs) {
  const auto order = verify::VerifiedSchedule::from(
      search::compute_order_of(program_on(config_, layout_).schedule()));
  const std::int64_t all = layout_.mesh.size();
  PENSTOCK_CHECK(all - std::ssize(left_out_) > ranks, ranks, " of ", all, " ranks");
  std::optional<search::RemainingRun> found;
  while (all - std::ssize(left_out_) > ranks) found = leave_out_one_more(order, costs.costs());
  Rerouted rerouted{.program = verify::VerifiedSchedule::from(
                        lower::with_messages(found->schedule.schedule(), "penstock")),
                    .left_out = left_out_,
                    .is_measured = costs.is_measured()};
  rerouted.step = makespan(rerouted.program, found->costs);
  if (instead) rerouted.instead = instead->step;
  return rerouted;
}

Layout layout_of(const Rerouted& rerouted, const Layout& before, std::string file) {
  Layout layout = before;
  layout.mesh = mesh::Shape{.pipe = rerouted.program.schedule().ranks()};
  layout.microbatches = rerouted.program.schedule().microbatches;
  layout.schedule.clear();
  layout.file = std::move(file);
  return layout;
}

std::string text_of(const Rerouted& rerouted, const Layout& before) {
  return str("all stay in their places, without rank", rerouted.left_out.size() == 1 ? " " : "s ",
             join(rerouted.left_out, ", "), " of ", mesh::to_string(before.mesh),
             ", whose microbatches other ranks of its stages take; ", before.samples(),
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

}  // namespace penstock::choose
