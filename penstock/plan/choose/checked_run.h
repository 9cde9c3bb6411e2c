// What is wrong with a run that can be found before a rank starts.
//
// `penstock train` asks for the mesh that it starts, `penstock config check` for the one that the
// configuration has, and whoever chooses a layout for each that may be chosen.  Knows no processes
// and no model's layers.
#pragma once
#include <string>

#include "penstock/config/config.h"
#include "penstock/core/mesh/axes.h"
#include "penstock/plan/lower/programs.h"

namespace penstock::choose {

// The program that the configuration trains on this mesh.
// Throws: ConfigError as config::resolve_batch().
lower::ProgramOptions program_of(const config::Config& config, const mesh::Shape& mesh);

// Throws: ConfigError for a path of data that is not there; "" is none.
void check_data(const std::string& path);

// Finds once what every rank would find wrong.
// Throws: Error with the name of the configuration in front.
void check_run(const std::string& name, const config::Config& config, const mesh::Shape& mesh);

}  // namespace penstock::choose
