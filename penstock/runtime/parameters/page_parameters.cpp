#include "penstock/runtime/parameters/page_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/stage/parameter_form.h"

namespace penstock::parameters {

void PageParameters::add(const stage::NamedParameter& parameter, std::int64_t offset) {
  parameters_.push_back(parameter);
  places_.push_back(parameter.tensor.detach());
  offsets_.push_back(offset);
}

std::string PageParameters::name() const {
  if (parameters_.front().name == parameters_.back().name) return parameters_.front().name;
  return str(parameters_.front().name, " .. ", parameters_.back().name);
}

const std::string& PageParameters::name_at(std::int64_t element) const {
  const auto behind = std::ranges::upper_bound(offsets_, element);
  return parameters_[static_cast<std::size_t>(behind - offsets_.begin()) - 1].name;
}

bool PageParameters::is_in_place(std::size_t i) const {
  const at::Tensor& tensor = parameters_[i].tensor;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             places_[i].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() &&
         tensor.storage_offset() == places_[i].storage_offset() &&
         stage::has_form_of(tensor, places_[i]);
}

std::vector<stage::NamedParameter> PageParameters::take_back() const {
  const at::NoGradGuard no_grad;
  std::vector<stage::NamedParameter> taken;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_in_place(i)) continue;
    const at::Tensor& tensor = parameters_[i].tensor;
    stage::check_form(parameters_[i], places_[i]);
    at::Tensor(places_[i]).copy_(tensor.detach());
    tensor.set_data(places_[i]);
    taken.push_back(parameters_[i]);
  }
  return taken;
}

void PageParameters::check_in_place() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_in_place(i)) continue;
    stage::check_form(parameters_[i], places_[i]);
    throw Error(str("parameter ", in_quotes(parameters_[i].name),
                    " has been given other memory, and its values come and go with the old one"),
                {"copy into it, where it is gathered"});
  }
}

void PageParameters::note_versions() {
  versions_.clear();
  for (const auto& parameter : parameters_) versions_.push_back(parameter.tensor._version());
}

void PageParameters::check_unchanged() const {
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    if (parameters_[i].tensor._version() == versions_[i]) continue;
    throw Error(str("parameter ", in_quotes(parameters_[i].name),
                    " was changed in place while it was gathered: the change would be lost"),
                {"change this rank's slices of it, or let all ranks adopt the change"});
  }
}

std::vector<stage::NamedParameter> PageParameters::changed(const at::Tensor& piece,
                                                           const at::Tensor& kept,
                                                           std::int64_t first) const {
  std::vector<stage::NamedParameter> changed;
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    const bool is_changed = parameters_[i].tensor._version() != versions_[i];
    if (is_changed || differs(i, piece, kept, first)) changed.push_back(parameters_[i]);
  }
  return changed;
}

// What is written behind autograd's back has no version.
bool PageParameters::differs(std::size_t i, const at::Tensor& piece, const at::Tensor& kept,
                             std::int64_t first) const {
  if (!piece.is_cpu() || !kept.is_cpu()) return false;
  const std::int64_t begin = std::max(offsets_[i], first);
  const std::int64_t end =
      std::min(offsets_[i] + parameters_[i].tensor.numel(), first + piece.numel());
  if (begin >= end) return false;
  const auto bytes_of = [&](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr()) +
           (begin - first) * static_cast<std::int64_t>(tensor.element_size());
  };
  return std::memcmp(bytes_of(piece), bytes_of(kept),
                     static_cast<std::size_t>(end - begin) * piece.element_size()) != 0;
}

}  // namespace penstock::parameters
