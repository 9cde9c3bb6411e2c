// What the launcher finds wrong with a run before it starts a rank.
//
// `penstock train` asks it for the mesh that it starts, `penstock config check` for the one that
// the configuration has.  Knows no processes and no model's layers.
#pragma once
#include <string>

#include "penstock/config/config.h"
#include "penstock/config/read.h"
#include "penstock/config/resolve.h"
#include "penstock/lower/programs.h"

namespace penstock::cli {

// What says which program the configuration trains on this mesh.
// Throws: ConfigError as config::resolve_batch().
lower::ProgramOptions program_of(const config::Config& config, const mesh::Shape& mesh);

// What every rank would find wrong, said once.
// Throws: Error with the name of the configuration in front.
void check_plan(const std::string& name, const config::Config& config, const mesh::Shape& mesh);

// A line on the standard error for each reason why keys have no effect.
void tell_ineffective_keys(const config::ReadConfig& read);

}  // namespace penstock::cli
