// A model that is saved to a folder, in place of the one that is there, if any.
//
// The rank that writes the index has one; shards are written by all ranks, under names of the
// series that it says.  Knows no ranks.
// Invariants: whenever the process or the machine stops, the folder has the old model, whole, or
// the new one.  The index is renamed when all shards are flushed.  No shard has a name that the old
// index knows.  A config.json that changes is away while it and the index are of two models.
#pragma once
#include <functional>
#include <string>

#include "penstock/core/output_lock.h"
#include "penstock/weights/weights.h"

namespace penstock::weights {

class NewModel {
 public:
  // Makes the folder, and keeps other processes from saving to it as long as this lives.  Removes
  // what a save has left there that did not end.  Until put_in_place() is over, a file in the
  // folder, model.saving, lists what the next save is to remove.
  // Throws: CheckpointError with the folder and the reason; one is that another process saves.
  explicit NewModel(std::string folder);
  ~NewModel();
  NewModel(const NewModel&) = delete;
  NewModel& operator=(const NewModel&) = delete;

  // The series for model_file(): one of which there is no shard.
  std::int32_t series() const { return series_; }

  // Makes the shards the folder's model, with its index and config.json, and removes those that
  // the old index names.  A model without a config has no config.json.  REQUIRES: all shards are
  // written and flushed.
  // Throws: CheckpointError for a file that cannot be written, and for a shard that is not there;
  // the folder then has the old model.
  // `advanced` is called after each call that waits for the disk.
  void put_in_place(const checkpoint::ModelIndex& index,
                    const std::function<void()>& advanced = {});

 private:
  std::string path_of(std::string_view name) const;
  void remove_leftovers() const;
  void remove_unless_in(const std::vector<std::string>& kept, const std::string& name) const;
  void check_shards(const checkpoint::ModelIndex& index) const;

  std::string folder_;
  OutputLock lock_;
  std::vector<std::string> old_shards_;
  std::int32_t series_ = 1;
};

}  // namespace penstock::weights
