#include "penstock/runtime/train/microbatches.h"

#include <ATen/ops/ne.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "penstock/core/error.h"
#include "penstock/core/ignored_target.h"
#include "penstock/core/text.h"

namespace penstock::train {
namespace {

std::int64_t samples_of(const nn::Values& batch) {
  if (batch.empty() || !batch[0].defined() || batch[0].dim() == 0) {
    throw Error("a batch has no samples: its first tensor has no first dimension");
  }
  for (const at::Tensor& tensor : batch) {
    if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != batch[0].size(0)) {
      throw Error(penstock::str("a batch of tensors with different numbers of samples: shapes ",
                                batch[0].sizes(), " and ",
                                tensor.defined() ? tensor.sizes() : at::IntArrayRef()),
                  {"every tensor of a batch has its samples along the first dimension"});
    }
  }
  return batch[0].size(0);
}

}  // namespace

std::vector<nn::Values> split(const nn::Values& batch, std::int32_t microbatches) {
  const std::int64_t samples = samples_of(batch);
  if (samples < microbatches) {
    throw Error(penstock::str("a batch of shape ", batch[0].sizes(), " does not split into ",
                              microbatches, " microbatches: each needs a sample"));
  }
  std::vector<nn::Values> parts(static_cast<std::size_t>(microbatches));
  std::int64_t first = 0;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    const std::int64_t size = samples / microbatches + (m < samples % microbatches ? 1 : 0);
    for (const at::Tensor& tensor : batch) {
      parts[static_cast<std::size_t>(m)].push_back(tensor.narrow(0, first, size));
    }
    first += size;
  }
  return parts;
}

double samples_of_inputs(const nn::Values& inputs) {
  std::optional<std::int64_t> samples;
  bool are_alike = true;
  for (const at::Tensor& tensor : inputs) {
    const bool has_some = tensor.defined() && tensor.dim() > 0;
    are_alike = are_alike && has_some && tensor.size(0) == samples.value_or(tensor.size(0));
    if (has_some && !samples) samples = tensor.size(0);
  }
  const auto count = static_cast<double>(samples.value_or(1));
  return are_alike && samples ? count : -count;
}

std::vector<double> known_samples(const std::vector<double>& samples) {
  std::vector<double> known;
  for (const double each : samples) known.push_back(std::abs(each));
  const bool are_known = std::ranges::none_of(samples, [](double s) { return std::signbit(s); });
  if (are_known || std::ranges::count(known, known.front()) == std::ssize(known)) return known;
  throw Error(
      "the samples of a microbatch cannot be told: its inputs have different first dimensions, and "
      "microbatches have different ones",
      {"say what the loss is a mean over: loss_scale = LossScale::counted([](const nn::Values& "
       "targets) { return ...; }), or LossScale::sum() for a loss that is a sum"});
}

void check_targets(const std::vector<nn::Values>& targets, const std::vector<double>& samples) {
  double of_inputs = 0, of_targets = 0;
  for (const double each : samples) of_inputs += std::abs(each);
  for (const nn::Values& each : targets) of_targets += static_cast<double>(samples_of(each));
  if (of_inputs == of_targets) return;
  throw Error(penstock::str("a batch with ", of_inputs, " samples in its inputs has targets with ",
                            of_targets, " rows, which step() cannot cut into microbatches"),
              {"targets have their inputs' samples along the first dimension; cut others yourself: "
               "step(std::vector<train::Microbatches>{{.inputs = ..., .targets = ...}})"});
}

LossScale LossScale::tokens() {
  return counted([](const nn::Values& targets) {
    const at::Tensor& labels = nn::the_only(targets, "counting the tokens of a target");
    return static_cast<double>(labels.ne(kIgnoredTarget).sum().item<std::int64_t>());
  });
}

double LossScale::weight(double samples, const nn::Values& targets) const {
  switch (kind) {
    case Kind::Samples:
      return samples;
    case Kind::Counted:
      return counted_weight(targets);
    case Kind::Sum:
      return 1.0;
  }
  return 1.0;
}

double LossScale::counted_weight(const nn::Values& targets) const {
  const double weight = count(targets);
  if (std::isfinite(weight) && weight >= 0) return weight;
  throw Error(penstock::str("the weight of a microbatch's loss is ", weight,
                            "; it must be a number of 0 or more"));
}

std::vector<double> LossScale::factors(const std::vector<double>& weights) const {
  if (kind == Kind::Sum) return weights;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!weights.empty() && sum == 0) {
    throw Error("no microbatch of the step has anything that counts: all weights of losses are 0");
  }
  std::vector<double> factors;
  const auto microbatches = static_cast<double>(weights.size());
  for (const double weight : weights) factors.push_back(weight * microbatches / sum);
  return factors;
}

double LossScale::divisor(std::int64_t microbatches) const {
  return kind == Kind::Sum ? 1.0 : static_cast<double>(microbatches);
}

double LossScale::combine(const std::vector<double>& losses,
                          const std::vector<double>& weights) const {
  double loss = 0.0, weight = 0.0;
  for (std::size_t m = 0; m < losses.size(); ++m) {
    if (weights[m] == 0) continue;
    loss += weights[m] * losses[m];
    weight += weights[m];
  }
  return kind == Kind::Sum ? loss : loss / weight;
}

std::int64_t LossScale::bad(const std::vector<double>& losses, const std::vector<double>& weights) {
  std::int64_t bad = 0;
  for (std::size_t m = 0; m < losses.size(); ++m) {
    if (weights[m] > 0 && !std::isfinite(losses[m])) ++bad;
  }
  return bad;
}

}  // namespace penstock::train
