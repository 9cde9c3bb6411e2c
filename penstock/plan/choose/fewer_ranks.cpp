#include "penstock/plan/choose/fewer_ranks.h"

#include <cmath>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/mesh/axes.h"
#include "penstock/core/text.h"
#include "penstock/partition/ownership.h"
#include "penstock/plan/choose/checked_run.h"
#include "penstock/plan/config/optimizer_states.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

using mesh::Axis;
using mesh::Role;

// Bytes that a rank holds for each element of the model, between steps and in the update: weights,
// gradients, states and masters.  Stages are taken as equally large.
double held_bytes(const Layout& layout, const config::Config& config) {
  constexpr double kFloat = sizeof(float);
  const auto weight = static_cast<double>(element_bytes(config));
  const double states = kFloat * config::states_per_parameter(config.optimizer);
  const double masters = weight < kFloat ? kFloat : 0.0;
  const partition::SharingRules rules{.stage = layout.zero, .ranks = layout.sharers()};
  const auto held = [&](double bytes, bool is_cut) {
    return is_cut ? bytes / layout.sharers() : bytes;
  };
  const bool are_released = rules.summed_bucket() == partition::SummedBucket::Released;
  return (held(weight, rules.come_and_go()) + held(weight, are_released) +
          held(states + masters, rules.are_cut())) /
         layout.mesh.size(Role::OtherParameters);
}

bool can_run(const std::string& name, const config::Config& config, const Layout& layout) {
  try {
    check_run(name, with_layout(config, layout), layout.mesh);
    return true;
  } catch (const Error&) {
    return false;  // No schedule for so many stages or microbatches.
  }
}

double step_of(const config::Config& config, const Layout& layout, const RunCosts& costs) {
  const auto program = program_on(config, layout);
  simulate::Costs fitting = costs.on(program.schedule().stages);
  fitting.links.clear();  // Links are between ranks of another layout.
  if (!simulate::misfits(fitting, program.schedule()).empty()) fitting = {};
  return simulate::simulate(program, fitting, simulate::Detail::Totals).makespan;
}

struct Rated : TimedLayout {
  double held = 0.0;
};

bool is_better(const Rated& a, const Rated& b) {
  constexpr double kRounding = 1e-9;
  const double difference = a.held - b.held;
  if (std::abs(difference) > kRounding * b.held) return difference < 0;
  return a.step < b.step;
}

}  // namespace

std::vector<Layout> layouts_on(std::int64_t ranks, const Layout& before) {
  std::vector<Layout> all;
  for (std::int32_t pipe = before.mesh[Axis::Pipe]; pipe >= 1; --pipe) {
    const mesh::Shape one = before.mesh.with(Axis::Pipe, pipe).with(Axis::Data, 1);
    if (ranks < one.size() || ranks % one.size() != 0) continue;
    Layout layout = before;
    layout.mesh = one.with(Axis::Data, static_cast<std::int32_t>(ranks / one.size()));
    const std::int64_t samples = layout.microbatch * layout.mesh.size(Role::OtherSamples);
    if (before.samples() % samples != 0) continue;
    layout.microbatches = static_cast<std::int32_t>(before.samples() / samples);
    all.push_back(layout);
  }
  return all;
}

std::optional<TimedLayout> layout_on(std::int64_t ranks, const std::string& name,
                                     const config::Config& config, const Layout& before,
                                     const RunCosts& costs) {
  std::optional<Rated> best;
  for (const Layout& layout : layouts_on(ranks, before)) {
    if (!can_run(name, config, layout)) continue;
    Rated rated{{.layout = layout, .step = step_of(config, layout, costs)},
                held_bytes(layout, config)};
    if (!best || is_better(rated, *best)) best = std::move(rated);
  }
  return best ? std::optional<TimedLayout>(std::move(*best)) : std::nullopt;
}

verify::VerifiedSchedule program_on(const config::Config& config, const Layout& layout) {
  return lower::training_program(program_of(with_layout(config, layout), layout.mesh));
}

std::string change_text(const Layout& before, const Layout& after) {
  std::string text = str(mesh::to_string(after.mesh), " for ", mesh::to_string(before.mesh));
  if (after.microbatches != before.microbatches) {
    text += str(", ", after.microbatches, " microbatches a replica for ", before.microbatches);
  }
  return str(text, "; ", after.samples(), " samples a step as before");
}

}  // namespace penstock::choose
