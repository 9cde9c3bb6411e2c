#include "penstock/runtime/update/update.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::update {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<parameters::Part>& parts) {
  std::vector<at::Tensor> tensors;
  for (const parameters::Part& part : parts) tensors.push_back(part.tensor);
  return tensors;
}

// While it lives, parts have no gradients but in their turn: an optimizer steps on those alone.
class InTurn {
 public:
  InTurn(const std::vector<at::Tensor>& parts, bool is_in_runs) : parts_(parts) {
    if (!is_in_runs) return;  // All have their turn at once.
    for (const at::Tensor& part : parts_) {
      gradients_.push_back(std::exchange(part.mutable_grad(), at::Tensor()));
    }
  }
  ~InTurn() {
    if (!gradients_.empty()) give({0, parts_.size()});
  }
  InTurn(const InTurn&) = delete;
  InTurn& operator=(const InTurn&) = delete;

  void give(PartRun run) {
    for (std::size_t i = run.first; i < run.end && !gradients_.empty(); ++i) {
      parts_[i].mutable_grad() = gradients_[i];
    }
  }
  void take(PartRun run) {
    for (std::size_t i = run.first; i < run.end && !gradients_.empty(); ++i) {
      parts_[i].mutable_grad().reset();
    }
  }

 private:
  const std::vector<at::Tensor>& parts_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace

double clip_factor(double largest, double norm) {
  return largest > 0 ? std::min(1.0, largest / (norm + 1e-6)) : 1.0;
}

double gradient_norm(std::span<const double> squares) {
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

Update::Update(std::vector<parameters::Part> parts, std::shared_ptr<GradientScale> scale,
               const UpdateOptions& options)
    : options_(options), parts_(tensors_of(parts)), scale_(std::move(scale)) {
  const bool are_elsewhere = options.states.place != offload::Place::Device;
  const bool are_in_file = options.states.place == offload::Place::File;
  const bool has_file =
      std::ranges::any_of(parts, [](const parameters::Part& part) { return part.file != nullptr; });
  if (are_in_file || has_file) {
    memory_ =
        std::make_unique<OffloadedParts>(std::move(parts), options.states, options.states_per_part);
  }
  masters_.emplace(parts_, are_elsewhere ? MastersPlace::Host : MastersPlace::Device,
                   memory_.get());
  if (are_elsewhere || memory_) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& part : parts_) sizes.push_back(part.numel());
    runs_ = partition::part_runs(sizes, options.elements_at_once);
  } else {
    runs_ = masters_->runs(options.elements_at_once);
  }
  // An optimizer that updates nothing here has its step, too.
  if (runs_.empty()) runs_.push_back({});
}

bool Update::skips(double norm) const {
  return options_.overflow == Overflow::SkipsStep && !std::isfinite(norm);
}

void Update::take_changes() {
  masters_->take_changes(masters_->all());
  if (memory_) memory_->let_go(masters_->all());
}

void Update::unscale_gradients() {
  const at::NoGradGuard no_grad;
  const double scale = gradients_scale();
  for (const at::Tensor& part : parts_) {
    if (!part.grad().defined()) continue;
    at::Tensor gradient = part.grad().to(parameters::master_type(part.scalar_type()));
    if (scale != 1.0) gradient.div_(scale);
    part.mutable_grad() = std::move(gradient);
  }
  are_unscaled_ = true;
}

bool Update::apply(double norm, std::int64_t number, const std::string& where, const Step& step) {
  const at::NoGradGuard no_grad;
  if (!std::isfinite(norm) && options_.overflow == Overflow::Fails) {
    throw NumericsError(str("step ", number, ": the gradient norm is ", shortest(norm), where),
                        {"the weights are as before this step",
                         "lower optimizer.params.lr, or set gradient_clipping"});
  }
  if (skips(norm)) {
    are_unscaled_ = false;
    ++skipped_steps_;
    scale_->update(/*overflowed=*/true);
    return false;
  }
  const double factor = clip_factor(options_.clipping, norm);
  InTurn gradients(parts_, runs_.size() > 1);
  if (!memory_) masters_->take_changes(masters_->all());
  const auto update_run = [&](PartRun run) {
    gradients.give(run);
    if (memory_) masters_->take_changes(run);  // What is in a file comes once.
    masters_->take_gradients(run, {.scale = gradients_scale(), .factor = factor});
    step(run);
    masters_->put_back(run);
    gradients.take(run);
  };
  try {
    if (memory_) {
      memory_->in_turn(runs_, update_run);
    } else {
      for (const PartRun& run : runs_) update_run(run);
    }
  } catch (...) {
    masters_->drop_gradients();
    throw;
  }
  are_unscaled_ = false;
  scale_->update(/*overflowed=*/false);
  return true;
}

}  // namespace penstock::update
