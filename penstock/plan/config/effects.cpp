#include "penstock/plan/config/effects.h"

#include <algorithm>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/config/fields.h"
#include "penstock/plan/config/path_visitor.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {
namespace {

// Visitor: each key that was given against the conditions that it stands under.
class EffectCheck : public PathVisitor {
 public:
  EffectCheck(const Origins& origins, const Facts& facts) : origins_(origins), facts_(facts) {}

  template <class T, class Kind>
  void field(std::string_view key, const T&, const Kind&, std::string_view /*meaning*/) {
    check(path_of(key));
  }

  template <class Conditions>
  void arguments(std::string_view key, const ClassName&, const Arguments& values,
                 const Conditions& conditions) {
    const std::size_t outer = conditions_.size();
    for (const auto& [name, value] : values) {
      for (const Condition& condition : conditions(name)) conditions_.push_back(condition);
      check(join_path(path_of(key), name));
      conditions_.erase(conditions_.begin() + static_cast<std::ptrdiff_t>(outer),
                        conditions_.end());
    }
  }

  template <class Body>
  void effective(const Condition& condition, Body&& body) {
    conditions_.push_back(condition);
    body();
    conditions_.pop_back();
  }

  std::vector<Ineffective> take() { return std::move(found_); }

 private:
  void check(const std::string& path) {
    const auto given = origins_.find(path);
    if (given == origins_.end()) return;
    for (const Truth truth : {Truth::No, Truth::Unknown}) {
      for (const Condition& condition : conditions_) {
        if (condition.holds(facts_) != truth) continue;
        found_.push_back({given->second, path, condition, truth});
        return;
      }
    }
  }

  const Origins& origins_;
  const Facts& facts_;
  std::vector<Condition> conditions_;
  std::vector<Ineffective> found_;
};

std::string reason(const Condition& condition, std::string_view needs) {
  return str(condition.found(), "; ", needs, " ", condition.needs());
}

}  // namespace

std::string Ineffective::why() const {
  if (holds == Truth::Unknown) return str("has an effect only with ", condition.needs());
  return str("has no effect: ", reason(condition, "it needs"));
}

std::vector<Ineffective> ineffective_keys(const Config& config, const Origins& origins,
                                          const Facts& facts) {
  EffectCheck check(origins, facts);
  visit_config(check, config);
  return check.take();
}

std::vector<Ineffective> ineffective_keys(const InitializeConfig& config, const Origins& origins,
                                          const Facts& facts) {
  EffectCheck check(origins, facts);
  visit_initialize(check, config);
  return check.take();
}

std::vector<std::string> warnings_of(const std::vector<Ineffective>& keys) {
  struct Group {
    const Ineffective* first;
    std::vector<std::string> keys;
  };
  std::vector<Group> groups;
  for (const Ineffective& each : keys) {
    if (each.holds != Truth::No) continue;
    const auto same = std::ranges::find_if(
        groups, [&](const Group& group) { return group.first->why() == each.why(); });
    if (same == groups.end()) {
      groups.push_back({&each, {each.key}});
    } else {
      same->keys.push_back(each.key);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [first, names] : groups) {
    const std::string last = names.size() > 1 ? str(" and ", names.back()) : "";
    const std::vector<std::string> others(names.begin(), names.end() - (last.empty() ? 0 : 1));
    const std::string where = to_string(first->origin);
    lines.push_back(str(where, where.empty() ? "" : ": ", join(others, ", "), last,
                        last.empty() ? " has no effect: " : " have no effect: ",
                        reason(first->condition, last.empty() ? "it needs" : "they need")));
  }
  return lines;
}

}  // namespace penstock::config
