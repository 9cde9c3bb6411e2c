#include "penstock/plan/choose/run_costs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/plan/simulate/costs_json.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

using simulate::Costs;
using verify::PerStage;

PerStage dealt_out(const PerStage& costs, std::int32_t before, std::int32_t after) {
  double sum = 0.0;
  for (std::int32_t stage = 0; stage < before; ++stage) sum += of_stage(costs, StageId(stage));
  return sum / after;
}

double largest(const PerStage& costs, std::int32_t stages) {
  double most = 0.0;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    most = std::max(most, of_stage(costs, StageId(stage)));
  }
  return most;
}

}  // namespace

double of_stage(const PerStage& costs, StageId stage) { return costs.at(stage, Microbatch(0)); }

RunCosts::RunCosts(const std::string& run, const schedule::Schedule& order)
    : stages_(order.stages) {
  const std::string file = run + "/costs.json";
  std::error_code error;
  if (run.empty() || !std::filesystem::exists(file, error)) return;
  try {
    const Costs measured =
        simulate::read_costs(file, read_file("costs file", file, simulate::kCostsBytesMax));
    is_measured_ = simulate::misfits(measured, order).empty();  // Costs of other stages misfit.
    if (is_measured_) costs_ = measured;
  } catch (const Error&) {
    return;  // Useless then.
  }
}

Costs RunCosts::on(std::int32_t stages) const {
  if (stages == stages_) return costs_;
  Costs even = costs_;
  for (PerStage Costs::* const each : {&Costs::forward, &Costs::input, &Costs::weight,
                                       &Costs::gather, &Costs::reduce, &Costs::activation}) {
    even.*each = dealt_out(costs_.*each, stages_, stages);
  }
  if (costs_.backward) even.backward = dealt_out(*costs_.backward, stages_, stages);
  even.message = largest(costs_.message, stages_);
  return even;
}

}  // namespace penstock::choose
