#include "penstock/plan/config/parameter_groups.h"

#include <regex>

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

struct GroupsByName::Patterns {
  std::vector<std::regex> of_groups;
};

GroupsByName::GroupsByName(const OptimizerConfig& options) : options_{options} {
  const auto patterns = std::make_shared<Patterns>();
  options_.front().groups.clear();
  for (const ParameterGroup& group : options.groups) {
    if (group.lr && options.lr == 0.0) {
      throw ConfigError(str("optimizer.groups[", options_.size() - 1,
                            "].lr = ", shortest(*group.lr),
                            ": rates of groups are in ratio to optimizer.params.lr, which is 0"));
    }
    patterns->of_groups.push_back(compiled(group, options_.size() - 1));
    options_.push_back(options_of(options, group));
  }
  patterns_ = patterns;
}

std::size_t GroupsByName::group_of(const std::string& name) const {
  const std::vector<std::regex>& patterns = patterns_->of_groups;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (std::regex_search(name, patterns[i])) return i + 1;
  }
  return 0;
}

double GroupsByName::rate(std::size_t group, double lr) const {
  const double own = options_.front().lr, of_group = options_[group].lr;
  return of_group == own ? lr : of_group * (lr / own);
}

}  // namespace penstock::config
