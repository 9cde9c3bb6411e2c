// The text of a configuration, complete and readable again.
//
// The run folder keeps one as config.resolved.json.
// Knows the table of keys (fields.h) and nothing that a run does with them.
//
// Law: parse_config(to_text(c), name).config == c for every c that passes validate(), has strings
// in UTF-8, and has defaults in the fields that its choices do not use.
#pragma once
#include <string>

#include "penstock/config/config.h"
#include "penstock/config/read.h"
#include "penstock/plan/config/initialize_fields.h"

namespace penstock::config {

// Writes every key that applies, defaults included, in a fixed order, a line each: equal configs
// give equal texts, so a text can be compared between ranks.  A default that has no effect is left
// out.
std::string to_text(const Config& config);

// The same with a comment behind each value that says where it came from.
std::string to_text(const ReadConfig& read);

// Writes every key that penstock.initialize uses with the value that it has, in one line of JSON.
// null: it has none.  Arguments of classes are left out: ReadInitializeConfig has them.
std::string to_text(const InitializeConfig& config);

}  // namespace penstock::config
