#include "penstock/plan/config/condition.h"

#include <algorithm>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::config {
namespace {

struct FactWords {
  std::string_view needs;
  std::string_view found;
};

FactWords words_of(RunFact fact) {
  switch (fact) {
    case RunFact::IsPipeline:
      return {"a model that is a PipelineModule", "the model is no PipelineModule"};
    case RunFact::HasNoOptimizer:
      return {"no optimizer as an argument", "initialize() is given an optimizer"};
    case RunFact::HasAnOptimizer:
      return {"an optimizer as an argument", "initialize() is given none"};
    case RunFact::HasNoScheduler:
      return {"no lr_scheduler as an argument", "initialize() is given an lr_scheduler"};
  }
  return {};
}

}  // namespace

Condition Condition::flag(std::string_view key, bool value) {
  return equals(key, value ? "true" : "false", "true");
}

Condition Condition::at_least(std::string_view key, std::int64_t value, std::int64_t least) {
  return Condition({.key = std::string(key),
                    .needs = str(key, " >= ", least),
                    .found = str(key, " is ", value),
                    .holds = value >= least});
}

Condition Condition::above_zero(std::string_view key, double value) {
  return Condition({.key = std::string(key),
                    .needs = str(key, " > 0"),
                    .found = str(key, " is ", shortest(value)),
                    .holds = value > 0});
}

Condition Condition::equals(std::string_view key, std::string_view value, std::string_view wanted) {
  return Condition({.key = std::string(key),
                    .needs = str(key, " = ", wanted),
                    .found = str(key, " is ", value),
                    .holds = value == wanted});
}

Condition Condition::given(std::string_view key, bool is_given) {
  return Condition({.key = std::string(key),
                    .needs = str("a value of ", key),
                    .found = str(key, " is absent"),
                    .holds = is_given});
}

Condition Condition::of_run(RunFact fact) {
  const FactWords words = words_of(fact);
  return Condition({.key = {},
                    .needs = std::string(words.needs),
                    .found = std::string(words.found),
                    .holds = fact});
}

Condition operator||(Condition a, const Condition& b) {
  a.parts_.insert(a.parts_.end(), b.parts_.begin(), b.parts_.end());
  return a;
}

Truth Condition::holds(const Facts& facts) const {
  Truth truth = Truth::No;
  for (const Part& part : parts_) {
    const auto* fact = std::get_if<RunFact>(&part.holds);
    const auto known = fact == nullptr ? facts.end() : facts.find(*fact);
    if (fact != nullptr && known == facts.end()) {
      truth = Truth::Unknown;
    } else if (fact == nullptr ? std::get<bool>(part.holds) : known->second) {
      return Truth::Yes;
    }
  }
  return truth;
}

bool Condition::is_about(std::string_view key) const {
  return std::ranges::any_of(parts_, [key](const Part& part) { return part.key == key; });
}

std::string Condition::needs() const {
  std::vector<std::string> all;
  for (const Part& part : parts_) all.push_back(part.needs);
  return join(all, " or ");
}

std::string Condition::found() const {
  std::vector<std::string> all;
  for (const Part& part : parts_) {  // Two values of a key are needed, and one is found.
    if (std::ranges::find(all, part.found) == all.end()) all.push_back(part.found);
  }
  return join(all, " and ");
}

}  // namespace penstock::config
