// The keys of a configuration that were given and can have no effect.
//
// The rule is the one of the tables: a key has an effect when its condition holds (condition.h).
// `penstock config check` lists what this finds; `penstock train` and penstock.initialize tell it
// once, at the start.  Knows no key.
#pragma once
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/config/condition.h"
#include "penstock/plan/config/initialize_fields.h"
#include "penstock/plan/config/origin.h"

namespace penstock::config {

struct Ineffective {
  Origin origin;
  std::string key;
  Condition condition;  // The first one of the key that does not hold, or may not.
  Truth holds = Truth::No;

  // "has no effect: fp16.enabled is false; it needs fp16.enabled = true"
  std::string why() const;
};

// Keys of `origins`, in the order of the table, whose condition does not hold, or is not known to.
std::vector<Ineffective> ineffective_keys(const Config& config, const Origins& origins,
                                          const Facts& facts = {});
std::vector<Ineffective> ineffective_keys(const InitializeConfig& config, const Origins& origins,
                                          const Facts& facts);

// A line for each condition that does not hold, with the place of its first key:
// "ds.json:3:5: fp16.loss_scale and fp16.hysteresis have no effect: ...".
std::vector<std::string> warnings_of(const std::vector<Ineffective>& keys);

}  // namespace penstock::config
