#include "penstock/config/initialize_fields.h"

#include <algorithm>
#include <span>

#include "penstock/core/text.h"

namespace penstock::config {
namespace {

// Of DeepSpeed alone, in lower case.
constexpr auto kNoOptimizers = std::to_array<std::string_view>(
    {"fusedadam", "cpuadam", "lamb", "fusedlamb", "lion", "muadam", "muadamw", "musgd",
     "onebitadam", "onebitlamb", "zerooneadam"});
constexpr auto kNoSchedulers = std::to_array<std::string_view>({"onecycle"});

}  // namespace

std::optional<Complaint> ClassName::read(const json::Value& json, std::string& value) const {
  const auto* text = std::get_if<std::string>(&json.data);
  if (text == nullptr || text->empty() || text->front() == '_') return wrong_type(noun(), json);
  const auto missing = of_optimizers ? std::span<const std::string_view>(kNoOptimizers)
                                     : std::span<const std::string_view>(kNoSchedulers);
  if (std::find(missing.begin(), missing.end(), lower_case(*text)) != missing.end()) {
    return Complaint{str(" = ", json_quote(*text),
                         of_optimizers ? ": torch.optim has none; give initialize() an optimizer"
                                       : ": use torch's \"OneCycleLR\""),
                     &json};
  }
  value = *text;
  return {};
}

}  // namespace penstock::config
