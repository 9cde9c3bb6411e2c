#include "penstock/cli/overrides.h"

namespace penstock::cli {

void declare_set(CLI::App& app, std::vector<config::Override>& overrides,
                 const std::string& example) {
  app.add_option_function<std::vector<std::string>>(
         "--set",
         [&overrides](const std::vector<std::string>& texts) {
           for (const auto& text : texts) overrides.push_back(config::parse_override(text));
         },
         "KEY=VALUE: set any key of the config: --set " + example)
      ->type_name("")
      ->allow_extra_args(false);
}

void declare_key(CLI::App& app, std::vector<config::Override>& overrides, const std::string& option,
                 const std::string& key, const std::string& help) {
  app.add_option_function<std::string>(
         option,
         [&overrides, option, key](const std::string& value) {
           overrides.push_back({key, value, option});
         },
         help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("");
}

}  // namespace penstock::cli
