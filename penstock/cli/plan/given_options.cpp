#include "penstock/cli/plan/given_options.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::cli {

std::vector<std::string> given_options(const CLI::App& app, std::string_view group) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    const bool is_asked_for = group.empty() || option->get_group() == group;
    if (option->count() > 0 && is_asked_for) names.push_back(option->get_name());
  }
  return names;
}

void refuse_options(const CLI::App& app, std::string_view group, std::string_view why) {
  const std::vector<std::string> names = given_options(app, group);
  if (!names.empty()) throw ConfigError(str(app.get_name(), ": ", join(names, ", "), ": ", why));
}

}  // namespace penstock::cli
