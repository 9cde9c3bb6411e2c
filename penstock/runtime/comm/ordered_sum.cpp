#include "penstock/runtime/comm/ordered_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

namespace penstock::comm {

void Transfers::wait() {
  for (const auto& transfer : transfers_) transfer->wait();
  transfers_.clear();
}

bool Transfers::is_over() {
  return std::ranges::all_of(transfers_, [](const auto& each) { return each->is_over(); });
}

OrderedSum::OrderedSum(std::vector<at::Tensor> summands, at::Tensor sum)
    : summands_(std::move(summands)), sum_(std::move(sum)) {}

void OrderedSum::wait() {
  if (summands_.empty()) return;
  Transfers::wait();
  const at::NoGradGuard no_grad;
  const bool is_short = c10::isReducedFloatingType(sum_.scalar_type());
  const at::Tensor sum = is_short ? at::empty_like(sum_, at::kFloat) : sum_;
  sum.copy_(summands_.front());
  for (std::size_t i = 1; i < summands_.size(); ++i) sum.add_(summands_[i]);
  if (is_short) sum_.copy_(sum);
  summands_.clear();
}

}  // namespace penstock::comm
