#include "penstock/runtime/train/own_optimizer.h"

#include <ATen/ops/full_like.h>
#include <c10/util/Type.h>
#include <torch/optim.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::train {
namespace {

using agreement::Fact;
using torch::optim::Optimizer;

std::string name_of(const Optimizer& optimizer) { return c10::demangle(typeid(optimizer).name()); }

// Each element's update depends on that element alone.
bool steps_by_element(const Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr;
}

void check_class(const Optimizer& optimizer, bool has_slices, bool has_parts) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw ConfigError(str("optimizer ", name_of(optimizer),
                          " computes the loss several times in a step, which a Trainer does not"));
  }
  if (steps_by_element(optimizer)) return;
  if (has_parts) {
    throw ConfigError(
        str("optimizer ", name_of(optimizer),
            " may look at whole parameters, and ranks that share layers update parts of them"),
        {"use mesh.tensor = 1, or SGD, Adam, AdamW, RMSprop or Adagrad of torch::optim"});
  }
  if (!has_slices) return;
  throw ConfigError(
      str("optimizer ", name_of(optimizer),
          " may look at whole parameters, and with ZeRO each rank updates slices of them"),
      {"use ZeroStage::Off, or SGD, Adam, AdamW, RMSprop or Adagrad of torch::optim"});
}

bool updates_slices(RankModel& here) {
  for (const auto& set : here.replicated().kept()) {
    const auto is_slice = [](const auto& each) { return each.part && each.is_slice; };
    if (std::ranges::any_of(set, is_slice)) return true;
  }
  return false;
}

// The place of what this rank updates of a parameter; none if only other ranks update it.
struct Updated {
  std::string name;
  at::Tensor master;  // Undefined where there is none.
};
using ByTensor = std::unordered_map<const at::TensorImpl*, Updated>;

ByTensor updated_here(RankModel& here, const update::MasterWeights& masters) {
  ByTensor all;
  for (const stage::NamedParameter& each : here.parameters()) {
    all[each.tensor.unsafeGetTensorImpl()] = {.name = each.name, .master = {}};
  }
  for (const auto& set : here.replicated().kept()) {
    for (const parameters::OwnedElements& each : set) {
      if (!each.part) continue;
      all[each.parameter.tensor.unsafeGetTensorImpl()] = {.name = each.parameter.name,
                                                          .master = masters.tensors()[*each.part]};
    }
  }
  return all;
}

// What Adagrad makes of a parameter before its first step, for its master.
bool hand_on_first_state(const torch::optim::OptimizerParamState& state, const at::Tensor& master,
                         std::unique_ptr<torch::optim::OptimizerParamState>& of_master) {
  const auto* const adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state);
  if (adagrad == nullptr || adagrad->step() != 0) return false;
  if (!master.defined() || adagrad->sum().numel() == 0) return true;
  auto made = std::make_unique<torch::optim::AdagradParamState>();
  made->step(0);
  made->sum(at::full_like(master.detach(), adagrad->sum().flatten()[0].item()));
  of_master = std::move(made);
  return true;
}

void move_state(Optimizer& optimizer, const at::Tensor& from, const Updated& to) {
  auto& states = optimizer.state();
  const auto found = states.find(from.unsafeGetTensorImpl());
  if (found == states.end()) return;
  std::unique_ptr<torch::optim::OptimizerParamState> of_master;
  if (!hand_on_first_state(*found->second, to.master, of_master)) {
    throw ConfigError(str("optimizer ", name_of(optimizer), " has taken steps on ",
                          in_quotes(to.name), ", of which something else is updated here"),
                      {"make it new: of parameters(), for step() and update() of this Trainer"});
  }
  states.erase(found);
  if (of_master) states[to.master.unsafeGetTensorImpl()] = std::move(of_master);
}

}  // namespace

std::vector<double> rates_of(Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) {
    rates.push_back(group.has_options() ? group.options().get_lr() : 0.0);
  }
  return rates;
}

Facts facts_of(Optimizer& optimizer) {
  std::vector<std::string> rates;
  for (const double rate : rates_of(optimizer)) rates.push_back(shortest(rate));
  return {{Fact::OwnOptimizer, str(name_of(optimizer), ", ", join(rates, " "))}};
}

void give_masters(Optimizer& optimizer, RankModel& here, const update::MasterWeights& masters) {
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& master : masters.tensors()) known.insert(master.unsafeGetTensorImpl());
  const auto is_master = [&](const at::Tensor& tensor) {
    return known.contains(tensor.unsafeGetTensorImpl());
  };
  check_class(optimizer, updates_slices(here), here.sharing().are_several());
  std::optional<ByTensor> updated;  // Made once it is needed.
  for (auto& group : optimizer.param_groups()) {
    if (std::ranges::all_of(group.params(), is_master)) continue;
    if (!updated) updated = updated_here(here, masters);
    std::vector<at::Tensor> now;
    for (const at::Tensor& each : group.params()) {
      if (is_master(each)) {
        now.push_back(each);
        continue;
      }
      const auto found = updated->find(each.unsafeGetTensorImpl());
      if (found == updated->end()) {
        throw ConfigError(
            penstock::str("optimizer ", name_of(optimizer), " has a tensor of shape ", each.sizes(),
                          " that is no parameter of this Trainer's rank"),
            {"make it of the parameters() of this Trainer"});
      }
      move_state(optimizer, each, found->second);
      if (found->second.master.defined()) now.push_back(found->second.master);
    }
    group.params() = std::move(now);
  }
}

}  // namespace penstock::train
