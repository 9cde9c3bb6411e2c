// Checks of a whole configuration: every range, and values that must fit together.
//
// read_config() calls it; so does whoever makes a Config in code, before resolve.h.
// Knows no world size and no model: the number of layers to cut is partition's to check.
#pragma once
#include "penstock/config/config.h"
#include "penstock/plan/config/initialize_fields.h"
#include "penstock/plan/config/origin.h"

namespace penstock::config {

// Throws: ConfigError with all problems; `origins` lets it say where a value was written.
void validate(const Config& config, const Origins& origins = {});

// The same of penstock.initialize's, as far as no number of ranks is needed.
void validate(const InitializeConfig& config, const Origins& origins);

}  // namespace penstock::config
