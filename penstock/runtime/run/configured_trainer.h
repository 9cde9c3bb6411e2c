// The model of a configuration on this rank, and the Trainer that has it.
//
// Training (run.h) and evaluating (evaluate.h) begin with one.  Knows no data but for its facts.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "penstock/comm/communicator.h"
#include "penstock/config/config.h"
#include "penstock/mesh/mesh.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/train/facts.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

class ConfiguredTrainer {
 public:
  // All that is a reference outlives it.
  // Throws: ConfigError for a mesh or a batch that does not fit the number of ranks.
  ConfiguredTrainer(const config::Config& config, comm::Communicator& communicator,
                    c10::Device device, execute::Progress& progress);

  comm::Communicator& communicator() { return communicator_; }
  c10::Device device() const { return device_; }
  bool is_root() const { return communicator_.rank().value == 0; }

  void read_model();
  const Model& model() const { return model_; }

  // Makes the Trainer.  Collective over all ranks, which have `of_data` in common.
  // REQUIRES: the model is read.
  void build(const train::Facts& of_data, const train::LossScale& loss_scale);
  train::Trainer& trainer() { return *trainer_; }
  // Keeps what a step frees for the next one (kept_memory.h), unless something is offloaded.
  // REQUIRES: the process is this run's alone.
  void keep_freed_memory() const;
  // The step, counted from 1, with which a course of the learning rate ends that ends with the run:
  // the run's last one, unless it is set.
  void end_schedule_at(std::int64_t step) { schedule_steps_ = step; }
  // What every rank has read for itself.
  const train::Facts& facts() const { return facts_; }

  // Samples of a step: of all replicas, of each, and the first one of this rank's.
  std::int64_t batch_size() const { return batch_.train_batch_size; }
  std::int64_t samples() const;
  std::int64_t first_sample() const;

 private:
  const config::Config& config_;
  comm::Communicator& communicator_;
  c10::Device device_;
  execute::Progress& progress_;
  mesh::Shape mesh_;
  config::Batch batch_;
  Model model_;
  train::Facts facts_;
  std::int64_t schedule_steps_ = 0;
  std::optional<train::Trainer> trainer_;
};

}  // namespace penstock::run
