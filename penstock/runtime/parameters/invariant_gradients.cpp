#include "penstock/runtime/parameters/invariant_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/plan/partition/gradient_buckets.h"
#include "penstock/runtime/parameters/sum_type.h"
#include "penstock/runtime/parameters/taken_gradient.h"

namespace penstock::parameters {
namespace {

std::vector<stage::NamedParameter> trained_of(const ParameterShards& shards) {
  std::vector<stage::NamedParameter> trained;
  for (const std::size_t i : shards.trained()) trained.push_back(shards.parameters()[i]);
  return trained;
}

}  // namespace

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
    parameters_[p].tensor.mutable_grad() = divided_total(gradients_[p]);
    drop_sums_of(p);
  }
  end_step();
}

const InvariantGradients::Shares& InvariantGradients::shares() {
  learn_shares();
  return shares_;
}

at::Tensor InvariantGradients::partial_sum(std::size_t parameter, const Subtree& subtree) const {
  const auto found = gradients_[parameter].find(subtree);
  return found == gradients_[parameter].end() ? at::Tensor() : found->second;
}

at::Tensor InvariantGradients::divided_total(const Subtrees& sums) const {
  at::Tensor sum = total(sums, shares_.microbatches);
  if (sum.defined()) divisor_.divide(sum);
  return sum;
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
      const at::Tensor mine = partial_sum(p, places[static_cast<std::size_t>(i)]);
      if (!mine.defined()) continue;
      all[p][i].narrow(0, 0, size).view(parameter.sizes()).copy_(mine);
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

InvariantShards::InvariantShards(ParameterShards& shards, comm::Communicator& communicator,
                                 std::function<void()> whole_gradients)
    : InvariantGradients(trained_of(shards), communicator, shards.group(),
                         std::move(whole_gradients)),
      shards_(shards),
      trained_(shards.parameters().size()),
      tag_(shards.group().reserve_tags(1)) {
  for (std::size_t i = 0; i < shards.trained().size(); ++i) trained_[shards.trained()[i]] = i;
}

void InvariantShards::finish() {
  // Where parameters come and go, programs that only go forward end here, too: all ranks'.
  if (shards_.ownership().rules.come_and_go() && !has_backwards()) return;
  const at::NoGradGuard no_grad;
  const std::vector<partition::Bucket>& buckets = shards_.ownership().buckets;
  std::deque<Sent> under_way;
  const auto take_first = [&] {
    take(under_way.front());
    under_way.pop_front();
  };
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (!buckets[b].is_trainable) continue;
    before_sum(*shards_.pages()[b]);
    if (under_way.size() == partition::kSumsUnderWay) take_first();
    under_way.push_back(send(b));
  }
  while (!under_way.empty()) take_first();
  end_step();
}

// A subtree's row is that of one replica, and nothing from the others.
InvariantShards::Sent InvariantShards::send(std::size_t b) {
  const partition::Bucket& bucket = shards_.ownership().buckets[b];
  const std::vector<Subtree>& subtrees = shares().subtrees;
  const std::int64_t width = bucket.piece + std::ssize(bucket.parameters);
  const at::Tensor& first = shards_.parameters()[bucket.parameters.front()].tensor;
  Sent sent{.bucket = b,
            .rows = at::full({shards_.group().size(), std::ssize(subtrees) * width}, kNothing,
                             first.options().requires_grad(false))};
  for (std::size_t entry = 0; entry < bucket.parameters.size(); ++entry) {
    const std::size_t parameter = bucket.parameters[entry];
    for (std::int64_t i = 0; i < std::ssize(subtrees); ++i) {
      const at::Tensor sum =
          partial_sum(trained_[parameter], subtrees[static_cast<std::size_t>(i)]);
      if (!sum.defined()) continue;
      const at::Tensor flat = sum.flatten();
      for (const auto& [rank, slice] : shards_.cuts_of(parameter)) {
        sent.rows[rank]
            .narrow(0, i * width + slice.offset, slice.count)
            .copy_(flat.narrow(0, slice.first, slice.count));
      }
      sent.rows.narrow(1, i * width + bucket.piece + static_cast<std::int64_t>(entry), 1).fill_(1);
    }
    drop_sums_of(trained_[parameter]);
  }
  sent.sum = at::empty({sent.rows.size(1)}, sent.rows.options());
  sent.transfer = shards_.group().reduce_scatter(sent.rows, sent.sum, tag_);
  return sent;
}

void InvariantShards::take(const Sent& sent) {
  sent.transfer->wait();
  const partition::Bucket& bucket = shards_.ownership().buckets[sent.bucket];
  const std::vector<Subtree>& subtrees = shares().subtrees;
  const at::Tensor rows = sent.sum.view({std::ssize(subtrees), -1});
  for (const ShardSlice& slice : shards_.slices()) {
    if (slice.place.bucket != sent.bucket) continue;
    const auto entry = std::ranges::find(bucket.parameters, slice.place.parameter);
    const std::int64_t flag = bucket.piece + (entry - bucket.parameters.begin());
    Subtrees sums;
    for (std::int64_t i = 0; i < std::ssize(subtrees); ++i) {
      const bool is_there = rows[i][flag].item<double>() > 0;
      sums[subtrees[static_cast<std::size_t>(i)]] =
          is_there ? rows[i].narrow(0, slice.place.offset, slice.place.count) : at::Tensor();
    }
    const at::Tensor sum = divided_total(sums);
    slice.values.mutable_grad() = sum.defined() ? sum.to(slice.values.device()) : sum;
  }
}

}  // namespace penstock::parameters
