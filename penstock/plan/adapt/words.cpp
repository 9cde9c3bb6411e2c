#include "penstock/plan/adapt/words.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"

namespace penstock::adapt {
namespace {

using render::percent;

constexpr std::size_t kStagesNamed = 4;

// Three digits.
std::string ms(double value) {
  const int digits = value <= 0 ? 0 : 2 - static_cast<int>(std::floor(std::log10(value)));
  return render::rounded(value, std::clamp(digits, 0, 6)) + " ms";
}

std::string steps_of(const WindowCosts& window) {
  return str(window.first_step, " to ", window.last_step);
}

// "12.7% less".
std::string less(double gain) {
  return gain < 0 ? percent(-gain) + " more" : percent(gain) + " less";
}

}  // namespace

std::string text_of(const Told& told, const WindowCosts& now,
                    const verify::VerifiedSchedule& program) {
  std::vector<std::string> changes;
  for (const StageChange& each : told.change.stages) {
    if (changes.size() == kStagesNamed) {
      changes.push_back(
          str(told.change.stages.size() - kStagesNamed, " more stages take another time"));
      break;
    }
    changes.push_back(str("stage ", each.stage, " (rank ", program.rank_of(each.stage),
                          " of the pipe) takes ", ms(each.now), " a microbatch, ", ms(each.before),
                          " before"));
  }
  if (const auto& step = told.change.step) {
    changes.push_back(str("a step takes ", ms(step->now), ", ", ms(step->before), " before"));
  }
  return str("costs have changed: ", join(changes, "; "), " (steps ", steps_of(now),
             ", before: ", steps_of(told.before), ")");
}

std::string text_of_chance(const Proposal& proposal, double least_gain) {
  if (proposal.gain() < least_gain) {
    return "no order of the same work is found that is faster by much";
  }
  return str("another order of the same work would take ", percent(proposal.gain()),
             " less by simulation; schedule.adapt = true lets a run change to it");
}

std::string text_of_change(const Proposal& proposal, std::int64_t first_step) {
  return str("from step ", first_step, " on another order, by simulation ", ms(proposal.step),
             " a step for ", ms(proposal.step_now), ": ", less(proposal.gain()));
}

std::string text_of(const Judgement& judged) {
  const std::string times =
      str("the new order takes ", ms(judged.now), " a step, ", ms(judged.before),
          " before: ", less(judged.gain()), ", ", less(judged.simulated_gain), " by simulation");
  return judged.stays ? times : times + "; the run goes back to the order before";
}

}  // namespace penstock::adapt
