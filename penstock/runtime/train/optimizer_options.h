// Options of a torch::optim optimizer in the place of our own: `.optimizer =
// torch::optim::AdamOptions(1e-3)` for a Trainer.
//
// A Trainer's constructor takes TrainerOptions with either.  Knows no parameters.
#pragma once
#include <concepts>

#include "penstock/config/config.h"

namespace torch::optim {
class OptimizerOptions;
struct AdamOptions;
struct AdamWOptions;
struct SGDOptions;
}  // namespace torch::optim

namespace penstock::train {

class TorchOptimizerOptions {
 public:
  TorchOptimizerOptions() = default;
  // NOLINTBEGIN(google-explicit-constructor): they stand where our own options do.
  TorchOptimizerOptions(const torch::optim::AdamOptions& options);  // Has L2, as torch's.
  TorchOptimizerOptions(const torch::optim::AdamWOptions& options);
  TorchOptimizerOptions(const torch::optim::SGDOptions& options);
  template <std::derived_from<torch::optim::OptimizerOptions> Other>
  TorchOptimizerOptions(const Other& /*options*/) {
    static_assert(sizeof(Other) == 0,
                  "a Trainer's own optimizers are SGD, Adam and AdamW: make others of "
                  "trainer.parameters(), and call trainer.step(inputs, targets, optimizer)");
  }
  // NOLINTEND(google-explicit-constructor)

  const config::OptimizerConfig& config() const { return config_; }

 private:
  config::OptimizerConfig config_;
};

}  // namespace penstock::train
