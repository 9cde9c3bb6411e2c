#include "penstock/cli/plan/cost_options.h"

#include <algorithm>
#include <vector>

#include "penstock/cli/costs_file.h"
#include "penstock/cli/plan/given_options.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

using simulate::Costs;

double one_number(std::string_view text, const std::string& option, const std::string& whole) {
  const std::string_view digits = trim(text);
  const auto value = parse_number(digits);
  const auto fail = [&](std::string_view expected) {
    throw ConfigError(str(option, " ", whole.substr(0, 60), ": expected ", expected, ", found ",
                          json_quote(digits.substr(0, 40))));
  };
  if (!value) fail("a number, or a comma list of numbers");
  if (!verify::is_cost(*value)) fail(verify::kCostRange);
  return *value;
}

}  // namespace

std::vector<double> numbers_of(const std::string& text, const std::string& option) {
  std::vector<double> numbers;
  for (const std::string& part : split(text, ',')) {
    numbers.push_back(one_number(part, option, text));
  }
  return numbers;
}

double number_of(const std::string& text, const std::string& option) {
  const std::vector<double> numbers = numbers_of(text, option);
  if (numbers.size() != 1) {
    throw ConfigError(str(option, " ", text.substr(0, 60), ": takes one number"));
  }
  return numbers.front();
}

void declare_costs(CLI::App& app, CostOptions& options) {
  const auto cost = [&](const char* name, std::string& value, const char* help) {
    app.add_option(name, value, help)->type_name("X")->group(kCostsGroup);
  };
  app.add_option("--costs", options.file,
                 "costs as JSON, in place of those of the schedule's file; the options\n"
                 "below go over it")
      ->type_name("FILE")
      ->group(kCostsGroup);
  cost("--forward", options.forward, "time of F (default 1)");
  cost("--input", options.input, "time of I, the gradient of the input (default 1)");
  cost("--weight", options.weight, "time of W, the gradient of the weights (default 1)");
  cost("--backward", options.backward, "time of B (default: I and W together)");
  cost("--forward-exchange", options.forward_exchange,
       "what of F is exchanges inside of layers, which a pass beside it hides (default 0)");
  cost("--input-exchange", options.input_exchange, "the same of I (default 0)");
  cost("--backward-exchange", options.backward_exchange,
       "the same of B (default: what W does not hide of those of I)");
  cost("--gather", options.gather, "time of an UNSHARD (default 0)");
  cost("--reduce", options.reduce, "time of a REDUCE_GRAD (default 0)");
  cost("--activation", options.activation, "memory of one activation (default 1)");
  cost("--latency", options.latency, "time of a message between two ranks (default 0)");
  cost("--keep", options.keep,
       "share of an activation kept from the end of I to that of W\n(default 1)");
}

Costs costs_of(const CostOptions& options, const std::optional<json::Value>& of_schedule) {
  Costs costs;
  if (!options.file.empty()) {
    costs = read_costs_file(options.file);
  } else if (of_schedule) {
    costs = simulate::read_costs(*of_schedule);
  }
  const auto per_stage = [](const std::string& text, const char* option, auto& cost) {
    if (!text.empty()) cost = verify::PerStage(numbers_of(text, option));
  };
  per_stage(options.forward, "--forward", costs.forward);
  per_stage(options.input, "--input", costs.input);
  per_stage(options.weight, "--weight", costs.weight);
  per_stage(options.backward, "--backward", costs.backward);
  per_stage(options.forward_exchange, "--forward-exchange", costs.forward_exchange);
  per_stage(options.input_exchange, "--input-exchange", costs.input_exchange);
  per_stage(options.backward_exchange, "--backward-exchange", costs.backward_exchange);
  per_stage(options.gather, "--gather", costs.gather);
  per_stage(options.reduce, "--reduce", costs.reduce);
  per_stage(options.activation, "--activation", costs.activation);
  if (!options.latency.empty()) costs.latency = number_of(options.latency, "--latency");
  if (!options.keep.empty()) costs.keep = number_of(options.keep, "--keep");
  return costs;
}

std::optional<double> memory_of(const std::string& text, std::string_view command) {
  if (text.empty()) return {};
  const bool has_unit = text.find_first_of("bB") != std::string::npos;
  if (!has_unit) return number_of(text, "--memory");
  const auto bytes = parse_bytes(text);
  if (bytes) return static_cast<double>(*bytes);
  throw ConfigError(str(command, ": --memory ", in_quotes(text),
                        ": expected a number in the unit of --activation, or bytes such as 12GB"));
}

void declare_channels(CLI::App& app, std::string& channels) {
  std::vector<std::string> names;
  for (const verify::Channels each : verify::kChannels) names.emplace_back(to_string(each));
  app.add_option("--channels", channels,
                 "how messages meet: by name (tagged), or in one order for each direction\n"
                 "(dirfifo), each pair of ranks (pairfifo), each rank (rankfifo)")
      ->capture_default_str()
      ->type_name("HOW")
      ->check(CLI::IsMember(names));
}

verify::Channels channels_of(const std::string& name) {
  const auto* const channels = std::ranges::find_if(
      verify::kChannels, [&](verify::Channels each) { return to_string(each) == name; });
  PENSTOCK_CHECK(channels != std::end(verify::kChannels), name);
  return *channels;
}

}  // namespace penstock::cli
