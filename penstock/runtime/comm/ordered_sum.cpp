#include "penstock/runtime/comm/ordered_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace penstock::comm {

void Transfers::begin() {
  for (const auto& transfer : transfers_) transfer->begin();
}

void Transfers::wait() {
  begin();  // One does not keep another from coming.
  for (const auto& transfer : transfers_) transfer->wait();
  transfers_.clear();
}

bool Transfers::is_over() {
  return std::ranges::all_of(transfers_, [](const auto& each) { return each->is_over(); });
}

OrderedSum::OrderedSum(std::vector<at::Tensor> summands, at::Tensor sum, SumOrder order)
    : summands_(std::move(summands)), sum_(std::move(sum)), order_(order) {}

void OrderedSum::wait() {
  if (summands_.empty()) return;
  Transfers::wait();
  const at::NoGradGuard no_grad;
  if (order_ == SumOrder::InHalves) add_halves();
  if (c10::isReducedFloatingType(sum_.scalar_type())) {
    const at::Tensor sum = summands_.front().to(at::kFloat);
    for (std::size_t i = 1; i < summands_.size(); ++i) sum.add_(summands_[i]);
    sum_.copy_(sum);
  } else {
    add_up();
  }
  summands_.clear();
}

// Neighbours are added as long as there is an even number of them; what is left is added up after.
void OrderedSum::add_halves() {
  if (summands_.size() < 4) return;
  const bool is_short = c10::isReducedFloatingType(sum_.scalar_type());
  while (summands_.size() > 2 && summands_.size() % 2 == 0) {
    std::vector<at::Tensor> pairs;
    for (std::size_t i = 0; i < summands_.size(); i += 2) {
      const at::Tensor left = is_short ? summands_[i].to(at::kFloat) : summands_[i];
      pairs.push_back(left + summands_[i + 1]);
    }
    summands_ = std::move(pairs);
  }
}

// Reads and writes each element once for each summand: none is copied before.
void OrderedSum::add_up() {
  const auto is_sum = [&](const at::Tensor& each) { return each.is_same(sum_); };
  const auto own = std::ranges::find_if(summands_, is_sum) - summands_.begin();
  const bool comes_later = own > 1 && own < std::ssize(summands_);
  at::Tensor begun = comes_later ? summands_.front() : sum_;
  if (summands_.size() == 1) begun.copy_(summands_.front());
  for (std::int64_t i = 1; i < std::ssize(summands_); ++i) {
    const at::Tensor& before = i == 1 ? summands_.front() : begun;
    const at::Tensor& into = i < own && comes_later ? begun : sum_;
    at::add_out(const_cast<at::Tensor&>(into), before, summands_[static_cast<std::size_t>(i)]);
    begun = into;
  }
}

}  // namespace penstock::comm
