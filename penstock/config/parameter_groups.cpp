#include "penstock/config/parameter_groups.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::config {
namespace {

std::regex compiled(const ParameterGroup& group, std::size_t number) {
  try {
    return std::regex(group.parameters, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    throw ConfigError(str("optimizer.groups[", number,
                          "].parameters = ", in_quotes(group.parameters),
                          ": not a regular expression: ", error.what()));
  }
}

OptimizerConfig options_of(OptimizerConfig options, const ParameterGroup& group) {
  options.lr = group.lr.value_or(options.lr);
  options.weight_decay = group.weight_decay.value_or(options.weight_decay);
  options.betas = group.betas.value_or(options.betas);
  options.eps = group.eps.value_or(options.eps);
  options.groups.clear();
  return options;
}

}  // namespace

GroupsByName::GroupsByName(const OptimizerConfig& options) : options_{options} {
  options_.front().groups.clear();
  for (const ParameterGroup& group : options.groups) {
    if (group.lr && options.lr == 0.0) {
      throw ConfigError(str("optimizer.groups[", patterns_.size(), "].lr = ", shortest(*group.lr),
                            ": rates of groups are in ratio to optimizer.params.lr, which is 0"));
    }
    patterns_.push_back(compiled(group, patterns_.size()));
    options_.push_back(options_of(options, group));
  }
}

std::size_t GroupsByName::group_of(const std::string& name) const {
  for (std::size_t i = 0; i < patterns_.size(); ++i) {
    if (std::regex_search(name, patterns_[i])) return i + 1;
  }
  return 0;
}

double GroupsByName::rate(std::size_t group, double lr) const {
  const double own = options_.front().lr, of_group = options_[group].lr;
  return of_group == own ? lr : of_group * (lr / own);
}

}  // namespace penstock::config
