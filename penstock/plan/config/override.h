// Values given on the command line, which replace those of the file.
//
// cli/ makes them, from `--set model.layers=2` and from options of their own such as `--steps 50`;
// read_config() puts them into the tree before anything is checked, so that a value is read the
// same way wherever it was written.  Knows no types: that is the reader's part.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "penstock/plan/config/wording.h"

namespace penstock::json {
struct Value;
}  // namespace penstock::json

namespace penstock::config {

struct Override {
  std::string path;    // "model.layers", or a section.
  std::string value;   // JSON; text that is not JSON is a string; null takes the key out.
  std::string origin;  // The option as errors name it: "--set model.layers=2", "--steps".
};

// The override that `--set text` means.
// Throws: ConfigError when `text` is not KEY=VALUE.
Override parse_override(std::string_view text);

// Writes the overrides into the tree, in their order, making sections that are not there.  A path
// that names no key is a problem, and changes nothing; so is a value that is not UTF-8.
void apply_overrides(json::Value& root, std::span<const Override> overrides, Problems& problems);

}  // namespace penstock::config
