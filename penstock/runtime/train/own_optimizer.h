// An optimizer of torch::optim, or of its form, that a program has, over what this rank updates.
//
// The program makes it of a Trainer's parameters(); the Trainer gives it the masters, or slices,
// that this rank updates in their place, and has it step.  Knows no gradients and no steps.
#pragma once
#include <vector>

#include "penstock/runtime/train/facts.h"
#include "penstock/runtime/train/rank_model.h"
#include "penstock/runtime/update/master_weights.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace penstock::train {

// The learning rate of each parameter group.
std::vector<double> rates_of(torch::optim::Optimizer& optimizer);

// What ranks must have in common of it.
Facts facts_of(torch::optim::Optimizer& optimizer);

// Gives an optimizer's groups masters in the place of parameters: those of what this rank updates,
// and nothing of what it does not.  Again is nothing.
// Throws: ConfigError, naming the class and the parameter, for one that is not of this model, one
// that has taken steps on something else than is updated, and an optimizer that has to see whole
// parameters, or the loss, and cannot.
void give_masters(torch::optim::Optimizer& optimizer, RankModel& here,
                  const update::MasterWeights& masters);

}  // namespace penstock::train
