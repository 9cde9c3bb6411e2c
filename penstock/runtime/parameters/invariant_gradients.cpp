#include "penstock/runtime/parameters/invariant_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/parameters/sum_type.h"
#include "penstock/runtime/parameters/taken_gradient.h"

namespace penstock::parameters {
namespace {}  // namespace

InvariantGradients::InvariantGradients(std::vector<stage::NamedParameter> parameters,
                                       comm::Communicator& communicator,
                                       const comm::ShardGroup& group,
                                       std::function<void()> whole_gradients)
    : parameters_(std::move(parameters)),
      communicator_(communicator),
      group_(group),
      whole_gradients_(std::move(whole_gradients)),
      gradients_(parameters_.size()) {}

void InvariantGradients::after_backward(std::int64_t microbatch) {
  const at::NoGradGuard no_grad;
  if (whole_gradients_) whole_gradients_();
  numbers_.push_back(microbatch);
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    add(gradients_[p], {microbatch, 1}, take_gradient(parameters_[p].tensor));
  }
}

void InvariantGradients::finish() {
  const at::NoGradGuard no_grad;
  learn_shares();
  if (group_.size() > 1) exchange();
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    at::Tensor sum = total(gradients_[p], shares_.microbatches);
    if (sum.defined()) divisor_.divide(sum);
    parameters_[p].tensor.mutable_grad() = std::move(sum);
    gradients_[p].clear();
  }
  numbers_.clear();
}

void InvariantGradients::drop_sums() {
  for (Subtrees& each : gradients_) each.clear();
  numbers_.clear();
  shares_ = {};
}

std::vector<double> InvariantGradients::sums(const std::vector<double>& mine) {
  const at::Tensor sums = at::tensor(mine, at::kDouble);
  if (group_.size() > 1) communicator_.all_reduce(sums, group_.group())->wait();
  const auto* const first = sums.const_data_ptr<double>();
  return {first, first + sums.numel()};
}

// The others have other microbatches in the steps in which this rank has.
void InvariantGradients::learn_shares() {
  std::ranges::sort(numbers_);
  if (numbers_ == shares_.mine) return;
  const double count = sums({static_cast<double>(numbers_.size())}).front();
  std::vector<double> ranks(static_cast<std::size_t>(count), 0.0);
  for (const std::int64_t number : numbers_) {
    PENSTOCK_CHECK(number < std::ssize(ranks), "microbatch ", number, " of ", ranks.size());
    ranks[static_cast<std::size_t>(number)] = group_.place() + 1;
  }
  ranks = sums(ranks);
  Shares learned{.mine = numbers_, .microbatches = std::ssize(ranks)};
  for (std::int32_t rank = 1; rank <= group_.size(); ++rank) {
    Subtrees subtrees;
    for (std::int64_t number = 0; number < std::ssize(ranks); ++number) {
      if (ranks[static_cast<std::size_t>(number)] == rank) add(subtrees, {number, 1}, {});
    }
    for (const auto& [subtree, sum] : subtrees) learned.subtrees.push_back(subtree);
  }
  shares_ = std::move(learned);
}

// Every rank's subtrees, each in a place of its own, with a flag: it has a gradient.
void InvariantGradients::exchange() {
  const std::vector<Subtree>& places = shares_.subtrees;
  std::vector<at::Tensor> all;  // Tensors of [places, elements + 1], by parameter.
  std::vector<std::unique_ptr<comm::Transfer>> transfers;
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    const at::Tensor& parameter = parameters_[p].tensor;
    const std::int64_t size = parameter.numel();
    all.push_back(at::full({std::ssize(places), size + 1}, kNothing,
                           parameter.options().requires_grad(false)));
    for (std::int64_t i = 0; i < std::ssize(places); ++i) {
      const auto mine = gradients_[p].find(places[static_cast<std::size_t>(i)]);
      if (mine == gradients_[p].end() || !mine->second.defined()) continue;
      all[p][i].narrow(0, 0, size).view(parameter.sizes()).copy_(mine->second);
      all[p][i][size] = 1;
    }
    transfers.push_back(communicator_.all_reduce(all[p], group_.group()));
  }
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    const at::Tensor& parameter = parameters_[p].tensor;
    const std::int64_t size = parameter.numel();
    transfers[p]->wait();
    gradients_[p].clear();
    for (std::int64_t i = 0; i < std::ssize(places); ++i) {
      const bool is_there = all[p][i][size].item<double>() > 0;
      gradients_[p][places[static_cast<std::size_t>(i)]] =
          is_there ? all[p][i].narrow(0, 0, size).view(parameter.sizes()) : at::Tensor();
    }
  }
}

}  // namespace penstock::parameters
