// What follows from the configuration once the number of processes is known.
//
// cli/ and train call it before anything is built; mesh and the schedule get the results.
// Knows no ranks and no devices.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/mesh/mesh.h"

namespace penstock::config {

// The shape that the configuration asks for; an axis that takes what is left of the world, one
// rank.
mesh::Shape asked_shape(const MeshConfig& mesh);
// The same, but that this axis has as many as the batch sizes need.
mesh::Shape asked_shape(const Config& config);
// The configuration that asks for a shape.
MeshConfig config_of(const mesh::Shape& shape);

// The shape of so many ranks.
// REQUIRES: validate() accepts the config; world_size >= 1.
// Throws: ConfigError when the axes do not make up the world, with sizes that would.
mesh::Shape resolve_mesh(const MeshConfig& mesh, std::int64_t world_size);

// The folder of the checkpoints of a run in directory `run`.
std::string checkpoint_directory(const CheckpointConfig& checkpoint, const std::string& run);

// A folder that a run writes to.
struct OutputFolder {
  std::string path;
  std::string content;  // "a run".
  std::string what;     // "run directory".
  std::string option;   // The option that names another folder.
};
// The folders of a run in directory `run`, which is the first.
std::vector<OutputFolder> output_folders(const Config& config, const std::string& run);

// Invariant: train_batch_size = micro_batch_size x microbatches x data-parallel ranks.
struct Batch {
  std::int64_t train_batch_size = 0;  // Samples per optimizer step.
  std::int64_t micro_batch_size = 0;  // Samples per microbatch.
  std::int64_t microbatches = 0;      // Microbatches of one replica in an optimizer step.
  friend bool operator==(const Batch&, const Batch&) = default;
};

// The batch-size triangle.  Two values give the third.  Alone,
//   train_batch_size: without a pipeline one microbatch, as in DeepSpeed.  In a pipeline as many as
//     divide a replica's samples, up to 4 x pipe: there the bubble is below a fifth of the step,
//     and more of them would only be smaller.
//   train_micro_batch_size_per_gpu: one microbatch, as in DeepSpeed: penstock may cut the samples
//     of a step into microbatches, but the number of samples is the user's.
// REQUIRES: validate() accepts the config.
// Throws: ConfigError when the values contradict each other or the mesh, with a note for each
// change
//         of one value that works; and when neither of the two above is given.
Batch resolve_batch(const BatchConfig& batch, const mesh::Shape& mesh);

// The same for penstock.initialize, which is not told of pipelines here: in each of them, too,
// train_batch_size alone takes one microbatch.
// data: replicas.
Batch resolve_batch(const BatchConfig& batch, std::int64_t data);

}  // namespace penstock::config
