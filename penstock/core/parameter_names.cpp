#include "penstock/core/parameter_names.h"

#include <algorithm>
#include <array>

#include "penstock/core/text.h"

namespace penstock {
namespace {

constexpr std::array kOfAdapters = {kAdapterIn, kAdapterOut, kAdapterLengths};

}  // namespace

bool is_within(std::string_view part, std::string_view parameter) {
  return parameter.find(str(".", part, ".")) != std::string_view::npos;
}

bool is_of_adapter(std::string_view parameter) {
  return std::ranges::any_of(kOfAdapters,
                             [&](std::string_view part) { return is_within(part, parameter); });
}

std::string_view linear_of(std::string_view parameter) {
  for (const std::string_view part : kOfAdapters) {
    const std::size_t found = parameter.find(str(".", part, "."));
    if (found != std::string_view::npos) return parameter.substr(0, found);
  }
  return parameter.substr(0, parameter.rfind('.'));
}

std::string_view last_name(std::string_view module) { return module.substr(module.rfind('.') + 1); }

}  // namespace penstock
