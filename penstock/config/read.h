// A configuration from a JSON file and command-line overrides.
//
// cli/ calls it once, on every rank with the same input; the result goes to resolve.h and down.
// The file is JSON with comments; an unknown key, a wrong type, a value out of range is an error
// that names file, line and column, and so are values that do not fit together (validate.h).
// Knows no world size: what depends on it is in resolve.h.
#pragma once
#include <span>
#include <string>

#include "penstock/config/config.h"
#include "penstock/config/origin.h"
#include "penstock/config/override.h"

namespace penstock::config {

struct ReadConfig {
  Config config;
  Origins origins;  // Of the keys that were given; the others have their defaults.
};

// The config in `file`, changed by `overrides`; "{}" is a config of defaults.
// Throws: ParseError when the text breaks JSON's rules.
//         ConfigError when the file cannot be read, or for all wrong keys and values at once.
ReadConfig read_config(const std::string& file, std::span<const Override> overrides = {});

// The same for a text in memory; errors call it `name`.
ReadConfig parse_config(std::string text, const std::string& name,
                        std::span<const Override> overrides = {});

}  // namespace penstock::config
