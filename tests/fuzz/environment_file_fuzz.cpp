#include <string>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/hosts/environment_file.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome environment_file(std::string_view input) {
  try {
    const hosts::Variables found = hosts::parse_environment_file(input, "input");
    std::string text;
    for (const auto& [name, value] : found) text += str(name, "=", value, "\n");
    PENSTOCK_CHECK(hosts::parse_environment_file(text, "again") == found, text);
    return Outcome::Accepted;
  } catch (const ConfigError&) {
    return Outcome::Refused;
  }
}

}  // namespace penstock::fuzz
