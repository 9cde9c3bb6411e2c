// What actions cost and how messages meet, from the command line.
//
// simulate and compare declare these options.  Knows no schedule: whether the numbers fit one is
// for simulate to say.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/core/json/tree.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/plan/verify/options.h"

namespace penstock::cli {

struct CostOptions {
  std::string file;  // Values as the user wrote them, here and below; "": he did not.
  std::string forward;
  std::string input;
  std::string weight;
  std::string backward;
  std::string forward_exchange;
  std::string input_exchange;
  std::string backward_exchange;
  std::string latency;
  std::string gather;
  std::string reduce;
  std::string activation;
  std::string keep;
};

void declare_costs(CLI::App& app, CostOptions& options);

// The costs of --costs, or else of the schedule's own file, changed by those of the command line.
// Throws: ConfigError or ParseError, which names the option or the place in the file.
simulate::Costs costs_of(const CostOptions& options,
                         const std::optional<json::Value>& of_schedule = {});

// What activations may take, of --memory: in the unit of their cost, or in bytes; absent for "".
// Throws: ConfigError, which begins with `command`.
std::optional<double> memory_of(const std::string& text, std::string_view command);

// --channels.
void declare_channels(CLI::App& app, std::string& channels);
// REQUIRES: a name that declare_channels() lets through.
verify::Channels channels_of(const std::string& name);

// A list of costs: "1", "1,2.5".
// Throws: ConfigError, which names the option.
std::vector<double> numbers_of(const std::string& text, const std::string& option);
// The same for an option that takes one number.
double number_of(const std::string& text, const std::string& option);

}  // namespace penstock::cli
