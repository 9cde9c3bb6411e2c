#include "penstock/runtime/train/optimizer_options.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <tuple>

#include "penstock/train/trainer_options.h"

namespace penstock::train {
namespace {

template <class AdamLike>
config::OptimizerConfig of_adam(config::OptimizerType type, const AdamLike& options) {
  return {.type = type,
          .lr = options.lr(),
          .betas = {std::get<0>(options.betas()), std::get<1>(options.betas())},
          .eps = options.eps(),
          .weight_decay = options.weight_decay(),
          .amsgrad = options.amsgrad(),
          .adam_w_mode = type == config::OptimizerType::AdamW};
}

}  // namespace

TorchOptimizerOptions::TorchOptimizerOptions(const torch::optim::AdamOptions& options)
    : config_(of_adam(config::OptimizerType::Adam, options)) {}

TorchOptimizerOptions::TorchOptimizerOptions(const torch::optim::AdamWOptions& options)
    : config_(of_adam(config::OptimizerType::AdamW, options)) {}

TorchOptimizerOptions::TorchOptimizerOptions(const torch::optim::SGDOptions& options)
    : config_{.type = config::OptimizerType::Sgd,
              .lr = options.lr(),
              .weight_decay = options.weight_decay(),
              .momentum = options.momentum(),
              .dampening = options.dampening(),
              .nesterov = options.nesterov()} {}

// A field that is added is added here: this does not compile without it.
TrainerOptions with_own_optimizer(const TorchTrainerOptions& options) {
  const auto& [mesh, schedule, program, stages_per_rank, microbatches, partition, optimizer,
               scheduler, total_steps, learning_rate, gradient_clipping, loss_scale, precision,
               sums, zero, offload, checkpointing, seed, device, progress, facts,
               compares_weights] = options;
  return {mesh,
          schedule,
          program,
          stages_per_rank,
          microbatches,
          partition,
          optimizer.config(),
          scheduler,
          total_steps,
          learning_rate,
          gradient_clipping,
          loss_scale,
          precision,
          sums,
          zero,
          offload,
          checkpointing,
          seed,
          device,
          progress,
          facts,
          compares_weights};
}

}  // namespace penstock::train
