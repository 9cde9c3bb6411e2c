// What `penstock plan` takes besides a configuration: what layers take, how long they take, and
// the links between ranks.
//
// Knows no layouts.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/cli/plan/plan_axes.h"
#include "penstock/config/config.h"
#include "penstock/plan/choose/layer_times.h"
#include "penstock/plan/choose/network.h"
#include "penstock/plan/config/override.h"
#include "penstock/plan/devices/device_model.h"
#include "penstock/plan/memory/layers_file.h"

namespace penstock::cli {

struct PlanInputs {
  std::string config;
  std::vector<config::Override> overrides;
  std::string layers;                          // "": found now.
  bool measure = false;                        // Measures them, where they are found now.
  std::vector<std::int64_t> microbatch_sizes;  // None: 1, 2, 4 and 8.
  std::vector<std::int32_t> tensor;            // None: 1, 2, 4 and 8.
  std::string costs;
  std::string device;  // A name, or a file of figures; "": none.
  std::string flops;
  std::string bandwidth;
  std::string link;
  std::int32_t ranks_per_node = 0;
  std::int32_t cores_per_node = 0;
  double crowding = 1.0;
  PlanAxes axes;
};

void declare_plan_inputs(CLI::App& app, PlanInputs& inputs);

// What can be seen to be missing before anything is measured.
// Throws: ConfigError.
void check_plan_inputs(const PlanInputs& inputs);

// The device that is named, if one is.  Throws: ConfigError, ParseError.
std::optional<devices::DeviceModel> device_of(const PlanInputs& inputs);

struct Layers {
  memory::LayersFile file;
  std::optional<ShapedLayers> shaped = {};  // Present: layers by formula, of any size.
};

// The file's numbers, or those measured by the program that has tensors, or those of a formula.
// Throws: ConfigError for a file of another model, and for sizes that it does not have; ParseError;
// Error where there is no such program, or it fails.
Layers layers_of(const PlanInputs& inputs, const config::Config& config);
std::string layers_text(const PlanInputs& inputs, const Layers& layers);

struct Times {
  std::function<std::vector<choose::LayerTimes>(const memory::MeasuredSize& size)> of;
  double memory_bandwidth = 0.0;
  std::optional<devices::DeviceModel> kernels = {};  // The device that prices kernels, if one does.
  std::string origin;                                // A line for people.
  std::optional<choose::LinkSpeed> link = {};        // Link that the costs were fitted with.
};

// `layers` outlives it.  Throws: ConfigError or ParseError, where there are no costs, or wrong
// ones.
Times times_of(const PlanInputs& inputs, const config::Config& config,
               const memory::LayersFile& layers);

struct Links {
  choose::Network network;
  std::string text;
};

// Throws: ConfigError.
Links links_of(const PlanInputs& inputs, const Times& times);

}  // namespace penstock::cli
