// The model that a run saves for other programs: a folder of weights, or of adapters.
//
// run.cpp has one; C++ users make one beside their Trainer.  Of the first replica each rank writes
// its stages' tensors, and rank 0 makes them a model in place of the one that is there.
// docs/weights.md has the layout.
// Invariant: whenever a process stops, the folder has a whole model, or none as before the first.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/weights/new_model.h"
#include "penstock/runtime/weights/safetensors.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

class SavedModel {
 public:
  // The model is that of the trainer; all outlive this.
  SavedModel(std::string folder, const Model& model, train::Trainer& trainer,
             comm::Communicator& communicator, execute::Progress& progress)
      : folder_(std::move(folder)),
        model_(model),
        trainer_(trainer),
        communicator_(communicator),
        progress_(progress) {}
  SavedModel(std::string folder, Model&& model, train::Trainer& trainer,
             comm::Communicator& communicator, execute::Progress& progress) = delete;
  // A model of one's own: its tensors by the names of its layers, and no config.json.
  SavedModel(std::string folder, train::Trainer& trainer, comm::Communicator& communicator)
      : folder_(std::move(folder)),
        model_(without_config_),
        trainer_(trainer),
        communicator_(communicator),
        progress_(own_progress_) {}
  SavedModel(const SavedModel&) = delete;
  SavedModel& operator=(const SavedModel&) = delete;

  // Throws: ConfigError where the folder has files that would be loaded instead.
  static void check_folder(const std::string& folder, const Model& model);

  // Collective, before anything is trained: whether the folder, which exists, has room.
  // Throws: CheckpointError, on rank 0, with what is needed and what is free.
  void check_room();

  // Tokens that the folder's generation_config.json is to name as ends of a text, too.
  void answers_end_with(std::set<std::int64_t> ends) { answer_ends_ = std::move(ends); }

  // Collective; over when all is in place.
  // card: what README.md beside a folder's model is to be, on rank 0; absent: the folder's own.
  // Returns: a line for people, "weights saved to out".
  // Throws: CheckpointError for a file that cannot be written.
  std::string write(const std::optional<std::string>& card = {});

  // What a folder's model or adapters are known by: a hash of every tensor's name and first 4 KiB;
  // "" where there are none, or files that are no weights.
  static std::string identity_of(const std::string& folder);

 private:
  bool is_root() const { return communicator_.rank().value == 0; }
  void begin();
  std::string key(std::string_view what) const;
  std::int32_t places() const;  // Places that have a shard each.

  std::int64_t bytes_to_save() const;
  void write_model();
  void write_shard(std::int32_t place);
  void put_in_place(weights::NewModel& model);

  void copy_other_files() const;
  void write_adapters();
  std::string adapter_part(std::int32_t place) const;
  void join_adapters();

  // Tensors of this rank's stages that are wanted by their names.
  // REQUIRES: these are whole.
  weights::NamedTensors state(const std::function<bool(const std::string&)>& is_wanted);
  at::Tensor as_saved(const std::string& name, const at::Tensor& tensor) const;
  std::string wait_for(std::int32_t place);

  std::string folder_;
  Model without_config_;
  execute::Progress own_progress_;
  const Model& model_;
  train::Trainer& trainer_;
  comm::Communicator& communicator_;
  execute::Progress& progress_;
  std::optional<std::string> card_;
  std::set<std::int64_t> answer_ends_;
  std::string name_;  // Name of the save under way, the same on all ranks.
  std::int64_t saves_ = 0;
  // Names in each place's shard, a line each; empty except on rank 0.
  std::vector<std::string> names_;
};

}  // namespace penstock::run
