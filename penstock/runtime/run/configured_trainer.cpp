#include "penstock/runtime/run/configured_trainer.h"

#include "penstock/plan/config/learning_rate.h"
#include "penstock/runtime/offload/kept_memory.h"

namespace penstock::run {

ConfiguredTrainer::ConfiguredTrainer(const config::Config& config, comm::Communicator& communicator,
                                     c10::Device device, execute::Progress& progress)
    : config_(config),
      communicator_(communicator),
      device_(device),
      progress_(progress),
      mesh_(config::resolve_mesh(config.mesh, communicator.world_size())),
      batch_(config::resolve_batch(config.batch, mesh_)) {}

void ConfiguredTrainer::read_model() { model_ = model_of(config_); }

void ConfiguredTrainer::build(const train::Facts& of_data, const train::LossScale& loss_scale) {
  facts_ = facts_of(config_) + model_.facts + of_data;
  train::TrainerOptions options = options_of(config_, mesh_, batch_);
  options.device = device_;
  options.progress = &progress_;
  options.facts = facts_;
  options.loss_scale = loss_scale;
  schedule_steps_ = config_.run.steps;
  if (config::ends_with_run(config_.scheduler)) {
    options.scheduler = {};
    options.learning_rate = [this](std::int64_t updates) {
      return config_.optimizer.lr *
             config::learning_rate_share(config_.scheduler, updates, schedule_steps_);
    };
  }
  if (offloads(config_)) offload::give_freed_memory_back();
  trainer_.emplace(options, model_.layers, model_.loss, communicator_);
}

void ConfiguredTrainer::keep_freed_memory() const {
  if (!offloads(config_)) offload::keep_freed_memory();
}

std::int64_t ConfiguredTrainer::samples() const {
  return batch_.train_batch_size / mesh_.size(mesh::Role::OtherSamples);
}

std::int64_t ConfiguredTrainer::first_sample() const {
  return trainer_->rank_model().groups().other_samples.here * samples();
}

}  // namespace penstock::run
