// A step's data by microbatch, and what each microbatch's loss is to the step's.
//
// The Trainer cuts batches with it and weighs losses; users may cut their own.  Knows no ranks.
// Shapes: a batch is one or several tensors with one first dimension, of samples.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/runtime/nn/loss.h"
#include "penstock/runtime/nn/values.h"

namespace penstock::train {

// How a batch was cut: by the Trainer, along first dimensions, or by its caller.
enum class CutBy : std::uint8_t { Caller, Trainer };

// The data of one run of the program: as many microbatches as the schedule has, of any sizes and
// shapes.
struct Microbatches {
  std::vector<nn::Values> inputs = {};   // Used on the first stage's ranks.
  std::vector<nn::Values> targets = {};  // Used on the last stage's ranks.
  CutBy cut_by = CutBy::Caller;
};

// Cuts a batch in order, into parts of sizes as equal as can be: 10 samples in 4 are 3, 3, 2 and 2.
// Throws: Error for tensors of different first dimensions, and for fewer samples than microbatches.
std::vector<nn::Values> split(const nn::Values& batch, std::int32_t microbatches);

// The samples of a microbatch: the first dimension of its inputs, with a minus where they do not
// have one in common, so that nobody knows which of them counts.  Numbers, as ranks share them.
double samples_of_inputs(const nn::Values& inputs);
// The numbers of samples_of_inputs() without their signs, for all microbatches of a step on all
// replicas.
// Throws: Error, where one has no known number of samples and they do not all weigh alike.
std::vector<double> known_samples(const std::vector<double>& samples);

// Throws: Error, where the Trainer has cut targets that have not their inputs' samples along the
// first dimension.  `samples` are those of the inputs, by microbatch.
void check_targets(const std::vector<nn::Values>& targets, const std::vector<double>& samples);

// What a step's loss is, and so what its gradients are the gradients of.  Of all n microbatches m
// of all replicas, with loss L(m) and weight w(m), it is the sum of f(m) L(m) / d.  The factor f(m)
// is where the backward pass of m starts, and what is seen within it; gradients are divided by d
// where they are summed.  So what a layer adds to gradients within a backward is divided likewise.
struct LossScale {
  enum class Kind : std::uint8_t {
    Samples,  // f = w / mean of w, d = n; w is the number of samples, which inputs have.
    Counted,  // The same; w is what `count` says of the targets.
    Sum,      // f = 1, d = 1.
  };
  using Count = std::function<double(const nn::Values& targets)>;

  Kind kind = Kind::Samples;
  Count count = {};

  // The scale of a loss that is the mean over a microbatch's samples.
  static LossScale samples() { return {}; }
  // The scale of a loss that is the mean over a microbatch's tokens.  Those with target -100 are
  // left out, as in torch's cross entropy.
  static LossScale tokens();
  // The scale of a loss that is the mean over something else, of which a microbatch has
  // count(targets).
  static LossScale counted(Count count) { return {Kind::Counted, std::move(count)}; }
  // The scale of a loss that is a sum.
  static LossScale sum() { return {Kind::Sum, {}}; }

  // w of a microbatch with so many samples.
  // Throws: Error for a count that is negative or not finite.
  double weight(double samples, const nn::Values& targets) const;
  // f by microbatch; 1 where all weigh alike.  REQUIRES: `weights` are those of all microbatches of
  // all replicas.
  std::vector<double> factors(const std::vector<double>& weights) const;
  // d of so many microbatches.
  double divisor(std::int64_t microbatches) const;
  // The step's loss, from all microbatches' in the order of their numbers.  One of weight 0 does
  // not count, whatever it is; bad() is the number of the others that are not finite.
  double combine(const std::vector<double>& losses, const std::vector<double>& weights) const;
  static std::int64_t bad(const std::vector<double>& losses, const std::vector<double>& weights);

 private:
  double counted_weight(const nn::Values& targets) const;
};

}  // namespace penstock::train
