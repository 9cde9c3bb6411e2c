#include "penstock/zero/held_parameters.h"

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::zero {

void HeldParameters::add(const stage::NamedParameter& parameter, std::int64_t offset) {
  parameters_.push_back(parameter);
  offsets_.push_back(offset);
}

std::string HeldParameters::name() const {
  if (parameters_.front().name == parameters_.back().name) return parameters_.front().name;
  return str(parameters_.front().name, " .. ", parameters_.back().name);
}

const std::string& HeldParameters::name_at(std::int64_t element) const {
  const auto behind = std::ranges::upper_bound(offsets_, element);
  return parameters_[static_cast<std::size_t>(behind - offsets_.begin()) - 1].name;
}

void HeldParameters::note_versions() {
  versions_.clear();
  for (const auto& parameter : parameters_) versions_.push_back(parameter.tensor._version());
}

void HeldParameters::check_unchanged() const {
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    if (parameters_[i].tensor._version() == versions_[i]) continue;
    throw Error(str("parameter ", in_quotes(parameters_[i].name),
                    " was changed in place while it was gathered: the change would be lost"),
                {"change this rank's slices of it, or let all ranks adopt the change"});
  }
}

}  // namespace penstock::zero
