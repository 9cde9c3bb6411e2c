#include "penstock/plan/choose/step_end.h"

#include <algorithm>

namespace penstock::choose {
namespace {

constexpr std::int64_t kFloat = 4, kDouble = 8, kFlag = 1;
constexpr std::int64_t kBlock = partition::kShardAlignment;
constexpr std::int64_t kSquaredAtOnce = std::int64_t{1} << 24;  // Elements: squared_norms.cpp.

// Adds up the times of a tensor's kernels.
class Kernels {
 public:
  explicit Kernels(const MemorySpeed& speed) : speed_(speed) {}

  // One of so many elements, with so many bytes of each.
  void add(std::int64_t elements, std::int64_t bytes_each) {
    if (elements == 0 || speed_.bytes_per_s == 0.0) return;
    const auto bytes = static_cast<double>(elements) * static_cast<double>(bytes_each);
    seconds_ += std::max(bytes / speed_.bytes_per_s, speed_.kernel_s);
  }
  void add_times(double times, std::int64_t elements, std::int64_t bytes_each) {
    const double before = seconds_;
    add(elements, bytes_each);
    seconds_ = before + times * (seconds_ - before);
  }
  double seconds() const { return seconds_; }

 private:
  const MemorySpeed& speed_;
  double seconds_ = 0.0;
};

// Squares in doubles, of which halves are added to halves.
void add_norm(std::int64_t elements, std::int64_t gradient, Kernels& kernels) {
  constexpr std::int64_t kAdd = 3 * kDouble;
  const auto add = [&](double times, std::int64_t here) {
    kernels.add_times(times, here, kDouble);             // Zeros.
    kernels.add_times(times, here, gradient + kDouble);  // A copy.
    kernels.add_times(times, here, kAdd);                // Squares.
    const std::int64_t blocks = (here + kBlock - 1) / kBlock;
    for (std::int64_t width = kBlock / 2; width > 0; width /= 2) {
      kernels.add_times(times, blocks * width, kAdd);
    }
    for (std::int64_t sums = blocks / 2; sums > 0; sums /= 2) kernels.add_times(times, sums, kAdd);
  };
  add(static_cast<double>(elements / kSquaredAtOnce), kSquaredAtOnce);
  add(1, elements % kSquaredAtOnce);
}

void add_update(const partition::Parameter& each, std::int64_t elements,
                const memory::Sharing& sharing, Kernels& kernels) {
  const std::int64_t own = each.element_bytes, sum = each.summed_element_bytes();
  const bool is_short = own < kFloat;
  add_norm(elements, sum, kernels);
  if (is_short) {
    kernels.add(elements, kFloat + own);     // Masters, rounded.
    kernels.add(elements, 2 * own + kFlag);  // Has the program set parameters?
    kernels.add(elements, kFlag);
    if (sum < kFloat) kernels.add(elements, sum + kFloat);
  }
  // Parameters, gradients and states are read and written.
  const std::int64_t touched = 2 * (2 + sharing.states_per_element);
  kernels.add(elements, touched * std::max(own, kFloat));
  if (is_short) kernels.add(elements, kFloat + own);
}

// The sum of a piece over `ranks`: short types are added in float.
void add_sum(std::int64_t piece, std::int64_t sum, std::int32_t ranks, Kernels& kernels) {
  const bool is_short = sum < kFloat;
  if (is_short) kernels.add(piece, sum + kFloat);
  kernels.add_times(ranks - 1, piece, 2 * std::max(sum, kFloat) + sum);
  if (is_short) kernels.add(piece, kFloat + sum);
}

}  // namespace

StepEnd& StepEnd::operator+=(const StepEnd& more) {
  first_backward += more.first_backward;
  later_backward += more.later_backward;
  in_backward += more.in_backward;
  after_sums += more.after_sums;
  update += more.update;
  return *this;
}

StepEnd step_end(const std::vector<const partition::Parameter*>& parameters,
                 const memory::Sharing& sharing, std::int32_t microbatches,
                 const MemorySpeed& speed) {
  const partition::SharingRules& rules = sharing.rules;
  const std::int32_t ranks = rules.ranks;
  const bool is_cut = rules.are_cut();
  Kernels added(speed), first(speed), later(speed), in_backward(speed), after_sums(speed),
      update(speed);
  for (const partition::Parameter* const parameter : parameters) {
    const partition::Parameter& each = *parameter;
    if (!each.is_trainable) continue;
    const std::int64_t elements = each.elements, sum = each.summed_element_bytes();
    const std::int64_t piece = is_cut ? (elements + ranks - 1) / ranks : elements;
    added.add(elements, 3 * each.element_bytes);
    if (each.is_summed_apart()) {
      first.add(elements, each.element_bytes + sum);
      later.add(elements, each.element_bytes + 2 * sum);
    } else {
      later.add(elements, 3 * each.element_bytes);
    }
    const bool is_divided = microbatches * ranks > 1;
    if (ranks == 1) {
      if (is_divided) in_backward.add(elements, 2 * sum);
    } else {
      if (rules.summed_bucket() == partition::SummedBucket::Released) {
        in_backward.add(elements, sum);  // A bucket's zeros.
      }
      in_backward.add(1, kFloat);  // Whether there is a gradient.
      const std::int32_t cuts = is_cut ? ranks : 1;
      in_backward.add_times(cuts, elements / cuts, 2 * sum);
      in_backward.add_times(cuts, elements / cuts, 2 * sum);
      Kernels& sums = is_cut ? in_backward : after_sums;
      add_sum(elements / ranks, sum, ranks, sums);
      if (!is_cut) sums.add(elements / ranks, 2 * sum);
    }
    // A rank has one slice of nearly every parameter, or all of it.
    add_update(each, piece, sharing, update);
  }
  return {.first_backward = first.seconds() - added.seconds(),
          .later_backward = later.seconds() - added.seconds(),
          .in_backward = in_backward.seconds(),
          .after_sums = after_sums.seconds(),
          .update = update.seconds()};
}

StepEnd fused_step_end(const std::vector<const partition::Parameter*>& parameters,
                       const memory::Sharing& sharing, const MemorySpeed& speed) {
  Kernels update(speed);
  for (const partition::Parameter* const each : parameters) {
    if (!each->is_trainable) continue;
    const std::int64_t ranks = sharing.rules.are_cut() ? sharing.rules.ranks : 1;
    const std::int64_t piece = (each->elements + ranks - 1) / ranks;
    const std::int64_t own = each->element_bytes, sum = each->summed_element_bytes();
    const std::int64_t short_parameter = own < kFloat ? own : 0;
    update.add(piece, sum);
    // A master and states are read and written.
    update.add(piece, sum + 2 * kFloat * (1 + sharing.states_per_element) + short_parameter);
  }
  return {.update = update.seconds()};
}

}  // namespace penstock::choose
