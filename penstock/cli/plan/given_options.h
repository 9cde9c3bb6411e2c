// Finds the options that a command line has, so that those which the chosen form cannot use are
// refused, not passed over.
//
// The planning commands use it once they know what they are asked for.  Knows no option by name.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// The groups in which the planning commands declare theirs.
inline constexpr const char* kSizesGroup = "Sizes";
inline constexpr const char* kCostsGroup = "Costs";

// "--ranks", "NAME|FILE": what the command line has, in the order of --help; of one group, or of
// all.
std::vector<std::string> given_options(const CLI::App& app, std::string_view group = "");

// Throws: ConfigError, "schedule: --forward: WHY", when it has options of the group.
void refuse_options(const CLI::App& app, std::string_view group, std::string_view why);

}  // namespace penstock::cli
