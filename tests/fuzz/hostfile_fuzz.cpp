#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/hosts/hostfile.h"
#include "penstock/launch/hosts/selection.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

using hosts::Host;

constexpr std::string_view kInclude = "\n--include ";
constexpr std::string_view kExclude = "\n--exclude ";

std::string text_of(const std::vector<Host>& listed) {
  std::string text;
  for (const Host& host : listed) text += str(host.name, " slots=", host.slot_count, "\n");
  return text;
}

// Cuts the option off, if it has it.
std::optional<std::string> take_option(std::string_view& input, std::string_view option) {
  const std::size_t at = input.find(option);
  if (at == std::string_view::npos) return std::nullopt;
  std::string value(input.substr(at + option.size()));
  input = input.substr(0, at);
  return value;
}

void check_chosen(const std::vector<Host>& listed, const std::vector<hosts::ChosenHost>& chosen) {
  PENSTOCK_CHECK(!chosen.empty(), "nothing is chosen");
  for (const hosts::ChosenHost& each : chosen) {
    const auto host = std::ranges::find(listed, each.name, &Host::name);
    PENSTOCK_CHECK(host != listed.end() && !each.slot_numbers.empty(), each.name);
    PENSTOCK_CHECK(each.slot_numbers.front() >= 0 && each.slot_numbers.back() < host->slot_count,
                   each.name);
    PENSTOCK_CHECK(std::ranges::is_sorted(each.slot_numbers, std::less_equal<>()), each.name);
  }
}

}  // namespace

Outcome hostfile(std::string_view input) {
  hosts::Selection selection;
  selection.include = take_option(input, kInclude).value_or("");
  selection.exclude = take_option(input, kExclude).value_or("");
  try {
    const std::vector<Host> listed = hosts::parse_hostfile(input, "input");
    PENSTOCK_CHECK(hosts::parse_hostfile(text_of(listed), "again") == listed, text_of(listed));
    check_chosen(listed, hosts::choose_hosts(listed, selection));
    return Outcome::Accepted;
  } catch (const ConfigError&) {
    return Outcome::Refused;
  }
}

}  // namespace penstock::fuzz
