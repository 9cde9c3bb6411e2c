// A layout: how a model is spread over ranks and its batch over time.  And all those that a number
// of ranks allows.
//
// Whoever chooses ranks them.  Values alone: knows no times and no memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/core/mesh/axes.h"

namespace penstock::choose {

using config::ZeroStage;

// What is in files while it is not used.
enum class Offload : std::uint8_t {
  Nothing,
  States,               // States of the optimizer, and masters of short types.
  StatesAndParameters,  // States, and what a rank keeps of parameters under ZeRO 3.
};

// "", "states", "states and parameters".
std::string_view in_files(Offload offload);

struct Layout {
  mesh::Shape mesh;
  ZeroStage zero = ZeroStage::Off;
  std::string schedule;                 // A name; empty: the program is in `file`.
  std::int32_t stages_per_rank = 1;     // Stages of a schedule by name.
  std::int64_t microbatch = 1;          // Samples.
  std::int32_t microbatches = 1;        // Number in a step and replica.
  std::int64_t recompute_interval = 0;  // Layers that are computed again together; 0: none are.
  bool is_selective = false;            // model.activation_checkpoint = "selective".
  Offload offload = Offload::Nothing;
  std::int32_t experts = 1;  // Ranks of a stage that share its experts.
  std::int32_t shards = 0;   // Ranks among which ZeRO cuts; 0: all that have the same parameters.
  std::string file = {};     // File of a program, in place of a schedule by name.

  std::int32_t pipe() const { return mesh.size(mesh::Role::Pipe); }  // Pipeline ranks.
  std::int32_t replicas() const { return mesh.size(mesh::Role::OtherSamples); }
  // Ranks that have the same parameters.
  std::int32_t sharers() const { return mesh.size(mesh::Role::SameParameters); }
  std::int32_t tensor() const { return mesh.size(mesh::Role::SharedWeights); }
  std::int32_t context() const { return mesh[mesh::Axis::Context]; }
  // Ranks that have the same experts.  Where no ranks share them, they are cut as other weights.
  std::int32_t expert_sharers() const {
    return experts > 1 ? sharers() * tensor() / experts : sharers();
  }
  // Ranks of these among which ZeRO cuts.
  std::int32_t zero_ranks() const { return shards > 0 ? shards : sharers(); }
  std::int32_t expert_zero_ranks() const;
  std::int32_t stages() const { return pipe() * stages_per_rank; }
  // Samples of a step.
  std::int64_t samples() const { return microbatch * microbatches * replicas(); }
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Whether the layout's ZeRO cuts what several ranks have.
bool cuts(const Layout& layout);

// What no run can have so far, in words such as "mesh.context 4"; none: `penstock train` takes it.
std::vector<std::string> only_planned(const Layout& layout);

// Whether the layout's parameters come and go, as those in files have to.
bool may_have_parameters_in_files(const Layout& layout);

// "none", "selective" or "full".
std::string_view recomputed(const Layout& layout);

// "pipe 4 x data 2, ZeRO 1, 1f1b, 8 microbatches of 2 samples, recomputed, states in files"
std::string to_string(const Layout& layout);

// The layout that the configuration has on this mesh.
// Throws: ConfigError as config::resolve_batch().
Layout layout_of(const config::Config& config, const mesh::Shape& mesh);

// The configuration with this layout in place of its own; all other keys stay as they are.
// `file_folder`: where files are that it does not have yet.
config::Config with_layout(config::Config config, const Layout& layout,
                           const std::string& file_folder = "");

// Bytes of an element of weights and gradients.
std::int64_t element_bytes(const config::Config& config);

struct Choices {
  std::int32_t world = 1;
  std::int64_t samples = 1;  // Samples of a step, on all replicas.
  std::int64_t layers = 1;
  std::vector<std::int64_t> microbatches;   // Samples: the sizes to choose from.
  std::vector<std::int32_t> tensor = {1};   // Numbers of ranks that share layers.
  std::vector<std::int32_t> context = {1};  // Numbers of ranks that share the tokens of a sample.
  std::vector<std::int32_t> experts = {1};  // Numbers of ranks that share experts.
  std::vector<std::int32_t> shards = {0};   // Values of Layout::shards.
  bool shards_within_nodes = false;         // Tries those of a node, too.
  std::int32_t ranks_per_node = 0;  // Ranks that share layers are of one node; 0: all are on one.
  std::vector<ZeroStage> zero;
  std::vector<std::int64_t> recompute_intervals = {0};
  std::vector<bool> selective = {false};  // Layers that are computed again have the first.
  std::vector<Offload> offloads = {Offload::Nothing};
};

// Every layout whose sizes fit: pipe, data, context and tensor make up the world, microbatches the
// batch, no stage is empty, the schedule takes the sizes.  One pipeline rank has one schedule,
// since they differ in nothing then, and one replica has one stage of ZeRO, but for parameters in
// files.
std::vector<Layout> all_layouts(const Choices& choices);

}  // namespace penstock::choose
