// The run that a command asks about without starting it: its configuration and its ranks.
//
// `penstock memory` and `penstock profile` have one.  Knows no tensors.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/config/override.h"

namespace penstock::cli {

struct AskedRun {
  std::string config;                       // Path of the JSON file.
  std::int64_t nproc = 0;                   // Ranks; 0: as many as the mesh has.
  std::vector<config::Override> overrides;  // Overrides in the order given.

  std::int64_t ranks(const config::MeshConfig& mesh) const;
};

// Declares CONFIG, --nproc and --set; `example` is a KEY=VALUE, for the help.
void declare_run(CLI::App& app, AskedRun& run, const std::string& example);

// The keys that say how many ranks there are: "mesh.pipe x mesh.data x ...".
std::string keys_of_ranks();

}  // namespace penstock::cli
