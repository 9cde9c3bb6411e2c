#include "penstock/runtime/parameters/program_changes.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "penstock/runtime/parameters/parts.h"
#include "penstock/runtime/stage/parameter_form.h"
#include "penstock/runtime/stage/value_hash.h"

namespace penstock::parameters {
namespace {

// Calls it with a set and the number of a parameter there, for each.
template <class Visit>
void visit_parameters(const std::vector<ParameterShards*>& sets, const Visit& visit) {
  for (ParameterShards* const set : sets) {
    for (std::size_t i = 0; i < set->parameters().size(); ++i) visit(*set, i);
  }
}

bool is_always_here(const ParameterShards& set, std::size_t parameter) {
  return set.ownership().parameters[parameter].presence != partition::Presence::WhileUsed;
}

bool is_in_page(const ParameterShards& set, std::size_t parameter) {
  return set.ownership().parameters[parameter].bucket.has_value();
}

}  // namespace

ProgramChanges::ProgramChanges(std::vector<ParameterShards*> sets) : sets_(std::move(sets)) {
  visit_parameters(sets_, [this](const ParameterShards& set, std::size_t i) {
    const stage::NamedParameter& parameter = set.parameters()[i];
    if (!is_in_page(set, i)) alone_.push_back({parameter, parameter.tensor.detach()});
  });
  note();
}

std::vector<stage::NamedParameter> ProgramChanges::take_over() {
  const at::NoGradGuard no_grad;
  std::vector<stage::NamedParameter> taken;
  for (const ParameterShards* const set : sets_) {
    for (const auto& page : set->pages()) {
      if (page->may_go()) {
        page->held().check_in_place();
      } else {
        std::ranges::move(page->held().take_back(), std::back_inserter(taken));
      }
    }
  }
  for (Alone& each : alone_) {
    const at::Tensor& tensor = each.parameter.tensor;
    if (tensor.is_alias_of(each.was) && stage::has_form_of(tensor, each.was)) continue;
    stage::check_form(each.parameter, each.was);
    each.was = tensor.detach();
    taken.push_back(each.parameter);
  }
  return taken;
}

void ProgramChanges::add(const std::vector<stage::NamedParameter>& changed) {
  for (const stage::NamedParameter& each : changed) {
    found_[each.name] = stage::hash_of_values(each.tensor);
  }
}

void ProgramChanges::find() {
  add(take_over());
  for (ParameterShards* const set : sets_) add(set->keep_changes());
  auto version = versions_.begin();
  visit_parameters(sets_, [&](const ParameterShards& set, std::size_t i) {
    if (!is_always_here(set, i)) return;
    const stage::NamedParameter& parameter = set.parameters()[i];
    if (parameter.tensor._version() != *version++) add({parameter});
  });
  note();
}

ProgramChanges::Hashes ProgramChanges::take_found() { return std::exchange(found_, {}); }

void ProgramChanges::note() {
  versions_.clear();
  visit_parameters(sets_, [this](const ParameterShards& set, std::size_t i) {
    if (is_always_here(set, i)) versions_.push_back(set.parameters()[i].tensor._version());
  });
}

void ProgramChanges::set(const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  visit_parameters(sets_, [&](ParameterShards& set, std::size_t i) {
    const stage::NamedParameter& parameter = set.parameters()[i];
    if (parameter.name != name) return;
    const at::Tensor exact = values.to(master_type(parameter.tensor.scalar_type()));
    if (const ShardSlice* const slice = set.slice_of(i)) {
      at::Tensor(slice->values)
          .copy_(exact.flatten().narrow(0, slice->place.first, slice->place.count));
    }
    if (is_in_page(set, i) && !set.page_of(i).is_here()) return;
    at::Tensor(parameter.tensor).copy_(exact);
    if (is_in_page(set, i)) set.page_of(i).take_row();
  });
  note();
}

}  // namespace penstock::parameters
