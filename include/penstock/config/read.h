// A configuration from a JSON file and command-line overrides.
//
// cli/ calls it once, on every rank with the same input; the result goes to resolve.h and down.
// The file is JSON with comments.  An unknown key, a wrong type and a value out of range are
// errors that name file, line and column.  So are values that do not fit together (validate.h).
// Knows no world size: what depends on it is in resolve.h.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/config/config.h"
#include "penstock/core/json/tree.h"
#include "penstock/plan/config/initialize_fields.h"
#include "penstock/plan/config/origin.h"
#include "penstock/plan/config/override.h"

namespace penstock::config {

struct ReadConfig {
  Config config;
  Origins origins;  // Origins of the keys that were given; the others have their defaults.
};

// The config in `file`, changed by `overrides`; "{}" is a config of defaults.
// Throws: ParseError when the text breaks JSON's rules.
//         ConfigError when the file cannot be read, or for all wrong keys and values at once.
ReadConfig read_config(const std::string& file, std::span<const Override> overrides = {});

// The same for a text in memory; errors call it `name`.
ReadConfig parse_config(std::string text, const std::string& name,
                        std::span<const Override> overrides = {});

// Whether a configuration is for training, or for a module's parameters alone.
enum class BatchSizes : std::uint8_t { Needed, NotNeeded };

struct ReadInitializeConfig {
  InitializeConfig config;
  Origins origins;
  json::Value root;  // Arguments of classes are of the kinds that the class takes.
};

// Why a schedule of that name cannot train, or "" (lower/programs.h knows).
using ScheduleObjection = std::function<std::string(std::string_view)>;

// A configuration of penstock.initialize, whose engines take the values from the tree.
// Throws: as parse_config(); what does not fit the ranks or the model is the engines' matter.
ReadInitializeConfig parse_initialize_config(json::Source source, const ScheduleObjection& object,
                                             BatchSizes sizes = BatchSizes::Needed);

}  // namespace penstock::config
