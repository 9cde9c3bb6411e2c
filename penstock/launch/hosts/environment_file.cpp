#include "penstock/launch/hosts/environment_file.h"

#include <algorithm>
#include <array>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::hosts {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"};
constexpr std::array<std::string_view, 8> kPrefixes = {"PYTHON", "PENSTOCK_", "NCCL_",   "GLOO_",
                                                       "UCX_",   "MV2_",      "MLFLOW_", "WANDB_"};
// Variables of one launch, which is not that of the other hosts.
constexpr std::array<std::string_view, 5> kOwn = {"PENSTOCK_CONTROL_FD", "PENSTOCK_STORE_FD",
                                                  "PENSTOCK_JOB_ID", "PENSTOCK_HEARTBEAT_SECONDS",
                                                  "PENSTOCK_RESTART_COUNT"};

bool is_variable_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && is_letter(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

bool is_exported(std::string_view name) {
  if (std::ranges::find(kOwn, name) != kOwn.end()) return false;
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kPrefixes,
                             [&](std::string_view each) { return name.starts_with(each); });
}

}  // namespace

Variables parse_environment_file(std::string_view text, const std::string& name) {
  Variables found;
  std::vector<std::string> complaints;
  int number = 0;
  for (const std::string& each : split(text, '\n')) {
    ++number;
    const std::string_view line = trim(each);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    const std::string_view variable = line.substr(0, equals);
    if (equals != std::string_view::npos && is_variable_name(variable)) {
      found.emplace_back(variable, line.substr(equals + 1));
    } else {
      complaints.push_back(
          str(name, ":", number, ": ", in_quotes(line), " is no variable; expected NAME=VALUE"));
    }
  }
  if (complaints.empty()) return found;
  const std::string first = complaints.front();
  complaints.erase(complaints.begin());
  throw ConfigError(first, std::move(complaints));
}

Variables exported(const std::vector<std::string>& entries) {
  Variables found;
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || !is_exported(entry.substr(0, equals))) continue;
    found.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return found;
}

}  // namespace penstock::hosts
