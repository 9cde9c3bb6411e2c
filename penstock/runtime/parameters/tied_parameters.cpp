#include "penstock/runtime/parameters/tied_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>

#include "penstock/runtime/parameters/sum_type.h"

namespace penstock::parameters {
namespace {

// A layer's gradient among those of one parameter.  Two summands have one order, so the first two
// may meet on the way; the others wait until they have met.
std::int64_t place_of(const nn::TiedParameter& copy) {
  const auto layer = std::ranges::find(copy.layers, copy.layer) - copy.layers.begin();
  return std::max<std::int64_t>(0, layer - 1);
}

}  // namespace

TiedParameters::TiedParameters(comm::Communicator& communicator, comm::Group group,
                               const std::vector<nn::TiedParameter>& copies,
                               std::optional<at::ScalarType> sums, Summand summand)
    : communicator_(communicator), group_(group), summand_(summand) {
  for (const nn::TiedParameter& copy : copies) {
    Parameter& parameter = find_or_add(copy);
    parameter.copies.push_back(copy);
    copy.copy.set_data(parameter.copies.front().copy.detach());
  }
  for (Flat& flat : flats_) {
    const at::Tensor& like = flat.parameters.front().copies.front().copy;
    flat.values = at::empty(
        {flat.size}, like.options().requires_grad(false).dtype(sum_type(like.scalar_type(), sums)));
  }
}

TiedParameters::Parameter& TiedParameters::find_or_add(const nn::TiedParameter& copy) {
  auto flat = std::ranges::find_if(flats_, [&](const Flat& each) {
    return each.parameters.front().copies.front().copy.scalar_type() == copy.copy.scalar_type();
  });
  if (flat == flats_.end()) flat = flats_.emplace(flats_.end());
  for (Parameter& parameter : flat->parameters) {
    if (parameter.copies.front().name == copy.name) return parameter;
  }
  Parameter parameter{.first_place = flat->size,
                      .places = std::max<std::int64_t>(1, std::ssize(copy.layers) - 1)};
  parameter.flag = flat->size + parameter.places * copy.copy.numel();
  flat->size = parameter.flag + 1;
  return flat->parameters.emplace_back(std::move(parameter));
}

void TiedParameters::share() {
  for (const Flat& flat : flats_) {
    for (const Parameter& parameter : flat.parameters) {
      const at::Tensor& first = parameter.copies.front().copy;
      for (const nn::TiedParameter& each : parameter.copies) {
        if (!each.copy.is_alias_of(first)) each.copy.set_data(first.detach());
      }
    }
  }
}

void TiedParameters::sum_gradients() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> here;
  std::vector<std::unique_ptr<comm::Transfer>> transfers;
  for (Flat& flat : flats_) {
    flat.values.fill_(kNothing);
    if (summand_ == Summand::Mine) {
      for (const Parameter& parameter : flat.parameters) collect(parameter, flat.values);
    }
    // On the host, which looks at the flags; itself, where it is there.
    here.push_back(flat.values.cpu());
    transfers.push_back(communicator_.all_reduce(here.back(), group_));
  }
  for (std::size_t i = 0; i < flats_.size(); ++i) {
    const Flat& flat = flats_[i];
    transfers[i]->wait();
    if (!flat.values.is_cpu()) flat.values.copy_(here[i], /*non_blocking=*/true);
    for (const Parameter& parameter : flat.parameters) {
      const bool has_one = here[i][parameter.flag].item<double>() > 0;
      hand_out(parameter, has_one ? flat.values : at::Tensor());
    }
  }
}

void TiedParameters::collect(const Parameter& parameter, const at::Tensor& values) {
  for (const nn::TiedParameter& copy : parameter.copies) {
    const at::Tensor& gradient = copy.copy.grad();
    if (!gradient.defined()) continue;
    const std::int64_t size = copy.copy.numel();
    values.narrow(0, parameter.first_place + place_of(copy) * size, size)
        .view(copy.copy.sizes())
        .add_(gradient);
    values[parameter.flag] = 1;
  }
}

void TiedParameters::hand_out(const Parameter& parameter, const at::Tensor& values) {
  const at::Tensor& like = parameter.copies.front().copy;
  const auto place = [&](std::int64_t i) {
    return values.narrow(0, parameter.first_place + i * like.numel(), like.numel());
  };
  at::Tensor sum;
  if (values.defined()) {
    for (std::int64_t i = 1; i < parameter.places; ++i) place(0).add_(place(i));
    sum = place(0).view(like.sizes());
  }
  for (const nn::TiedParameter& copy : parameter.copies) copy.copy.mutable_grad() = sum;
}

}  // namespace penstock::parameters
