#include "penstock/execute/invariant_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <memory>
#include <utility>

#include "penstock/execute/taken_gradient.h"
namespace penstock::execute {
namespace {

// Adds nothing to any number, not even to the sign of a zero.
constexpr double kNothing = -0.0;

}  // namespace

InvariantGradients::InvariantGradients(std::vector<stage::NamedParameter> parameters,
                                       comm::Communicator& communicator,
                                       const comm::ShardGroup& group)
    : parameters_(std::move(parameters)),
      communicator_(communicator),
      group_(group),
      gradients_(parameters_.size()) {}

void InvariantGradients::after_backward(std::int64_t microbatch) {
  const at::NoGradGuard no_grad;
  ++microbatches_;
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    add(gradients_[p], {microbatch, 1}, take_gradient(parameters_[p].tensor));
  }
}

void InvariantGradients::finish() {
  const at::NoGradGuard no_grad;
  if (group_.size() > 1) exchange();
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    at::Tensor sum = total(gradients_[p], microbatches_ * group_.size());
    if (sum.defined()) divisor_.divide(sum);
    parameters_[p].tensor.mutable_grad() = std::move(sum);
    gradients_[p].clear();
  }
  microbatches_ = 0;
}

void InvariantGradients::drop_sums() {
  for (Subtrees& each : gradients_) each.clear();
  microbatches_ = 0;
}

// Every replica's subtrees, each in a place of its own, with a flag: it has a gradient.
void InvariantGradients::exchange() {
  std::vector<Subtree> places;
  for (std::int64_t replica = 0; replica < group_.size(); ++replica) {
    for (const Subtree& each : largest_subtrees(replica * microbatches_, microbatches_)) {
      places.push_back(each);
    }
  }
  std::vector<at::Tensor> all;  // By parameter: [places, elements + 1].
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

}  // namespace penstock::execute
