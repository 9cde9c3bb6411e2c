#include "penstock/runtime/parameters/parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace penstock::parameters {

void Parts::add(const at::Tensor& parameter) {
  parts_.push_back({.tensor = parameter, .parameter = cuts_.size()});
  add_cuts({{0, parameter.numel()}});
}

void Parts::add(const ParameterShards& shards, std::size_t parameter) {
  if (const ShardSlice* slice = shards.slice_of(parameter)) {
    parts_.push_back({.tensor = slice->values,
                      .parameter = cuts_.size(),
                      .first = slice->place.first,
                      .file = shards.page_of(parameter).file()});
  }
  std::vector<Cut> cuts;
  for (const partition::PlacedSlice& each : shards.cuts_of(parameter)) {
    cuts.push_back({each.slice.first, each.slice.count});
  }
  add_cuts(std::move(cuts));
}

void Parts::add_cuts(std::vector<Cut> cuts) {
  first_.push_back(first_.back());
  for (const Cut& cut : cuts) first_.back() += count_subtrees(cut);
  cuts_.push_back(std::move(cuts));
}

std::vector<at::Tensor> Parts::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const Part& part : parts_) tensors.push_back(part.tensor);
  return tensors;
}

std::vector<double> Parts::squared_norms(const std::function<void(const at::Tensor&)>& share,
                                         std::span<double> along) const {
  const at::Tensor all = at::zeros({first_.back() + std::ssize(along)}, at::kDouble);
  auto* value = all.data_ptr<double>();
  std::vector<GradientSlice> slices;
  std::vector<std::int64_t> places;  // Places among all subtrees.
  for (const Part& part : parts_) {
    if (!part.tensor.grad().defined()) continue;
    slices.push_back({part.tensor.grad(), part.first});
    places.push_back(first_[part.parameter]);
    for (const Cut& cut : cuts_[part.parameter]) {
      if (cut.first < part.first) places.back() += count_subtrees(cut);
    }
  }
  const std::vector<std::vector<double>> squares = subtree_squares(slices);
  for (std::size_t i = 0; i < slices.size(); ++i) std::ranges::copy(squares[i], value + places[i]);
  std::ranges::copy(along, value + first_.back());
  share(all);
  std::copy_n(value + first_.back(), along.size(), along.begin());
  std::vector<double> norms;
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    const auto count = static_cast<std::size_t>(first_[i + 1] - first_[i]);
    norms.push_back(total_of_squares(cuts_[i], {value + first_[i], count}));
  }
  return norms;
}

std::vector<at::Tensor> copies_of_gradients(const Parts& parts) {
  std::vector<at::Tensor> copies;
  for (const Part& part : parts.all()) {
    const at::Tensor& gradient = part.tensor.grad();
    copies.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
  }
  return copies;
}

void add_gradients(const Parts& parts, const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    at::Tensor& sum = parts.all()[i].tensor.mutable_grad();
    sum = sum.defined() ? sum.add_(gradients[i]) : gradients[i];
  }
}

}  // namespace penstock::parameters
