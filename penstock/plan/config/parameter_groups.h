// Finds the options with which each parameter is updated: the optimizer's own, or those of a group.
//
// update/ steps by it, and a Trainer finds groups without a parameter with it.  Names are those of
// the whole model, so that no layout, and no stage of ZeRO, changes a parameter's group.  Knows no
// tensors.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "penstock/config/config.h"

namespace penstock::config {

class GroupsByName {
 public:
  // Throws: ConfigError for a group's text that is no regular expression, and for one with a
  // learning rate of its own, where the optimizer's is 0: rates rise and fall with that.
  explicit GroupsByName(const OptimizerConfig& options);

  std::size_t size() const { return options_.size(); }
  // 0: the optimizer's own options; n: those of groups[n - 1], the first that is found in the name.
  std::size_t group_of(const std::string& name) const;
  // The group's options; what it does not say itself is the optimizer's.
  const OptimizerConfig& options(std::size_t group) const { return options_[group]; }
  // A group's rate where the optimizer's is `lr`: in the ratio of the two options.
  double rate(std::size_t group, double lr) const;

 private:
  struct Patterns;  // Programs that include the Trainer's header do without <regex>.

  std::vector<OptimizerConfig> options_;
  std::shared_ptr<const Patterns> patterns_;
};

}  // namespace penstock::config
