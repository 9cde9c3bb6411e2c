#include "penstock/plan/config/check.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "penstock/plan/config/effects.h"
#include "penstock/plan/config/initialize_fields.h"
#include "penstock/plan/config/override.h"
#include "penstock/plan/config/reader.h"

namespace penstock::config {
namespace {

// An error names the key first; a finding has it already.
std::string without_key(const std::string& why, const std::string& key) {
  if (!why.starts_with(key)) return why;
  const std::size_t rest = why.find_first_not_of(": ", key.size());
  return rest == std::string::npos ? "" : why.substr(rest);
}

void note_absent(Dialect dialect, const Origins& origins, const std::string& name,
                 std::vector<Finding>& findings) {
  for (const AbsentKey& key : absent_keys(dialect)) {
    if (origins.contains(key.path)) continue;
    const auto is_left_open = [&](const Finding& each) {
      return each.is_auto && each.key == key.path;
    };
    if (std::ranges::any_of(findings, is_left_open)) continue;
    if (!key.given.empty() && !origins.contains(key.given)) continue;
    findings.push_back(
        {{.source = name}, std::string(key.path), Verdict::Different, std::string(key.difference)});
  }
}

// What a run is taken to be, as long as nobody knows: whether a model is a pipeline stays open.
Facts expected_facts() {
  return {{RunFact::HasNoOptimizer, true}, {RunFact::HasNoScheduler, true}};
}

// Keys that can have no effect, or perhaps none; a condition on a value that could not be read says
// nothing.
template <class Values>
void note_ineffective(const Values& config, const Reader& reader, std::vector<Finding>& findings) {
  for (const Ineffective& each : ineffective_keys(config, reader.origins(), expected_facts())) {
    const auto unread = [&](const std::string& key) { return each.condition.is_about(key); };
    if (std::ranges::any_of(reader.failed(), unread)) continue;
    for (Finding& finding : findings) {
      if (finding.key != each.key) continue;
      finding.why = finding.verdict == Verdict::Used ? each.why() : each.why() + "; " + finding.why;
      finding.verdict = Verdict::Different;
    }
  }
}

template <class Values, class Visit>
void read_values(Values values, const Visit& visit, Reader& reader,
                 std::vector<Finding>& findings) {
  visit(reader, values);
  reader.judge_other_keys();
  note_ineffective(values, reader, findings);
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::Used:
      return "used";
    case Verdict::Different:
      return "different";
    case Verdict::Refused:
      return "refused";
  }
  return "";
}

std::vector<Finding> check_config(Dialect dialect, std::string text, const std::string& name) {
  json::Value root = json::parse(
      std::make_shared<const json::Source>(json::Source{.name = name, .text = std::move(text)}));
  Problems problems;
  apply_overrides(root, {}, problems);
  std::vector<Finding> findings;
  Reader reader(dialect, root, problems, &findings);
  switch (dialect) {
    case Dialect::Train:
      read_values(Config(), [](auto& v, auto& c) { visit_config(v, c); }, reader, findings);
      break;
    case Dialect::Initialize:
      read_values(
          InitializeConfig(), [](auto& v, auto& c) { visit_initialize(v, c); }, reader, findings);
      break;
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.origin < b.origin; });
  for (Finding& finding : findings) finding.why = without_key(finding.why, finding.key);
  note_absent(dialect, reader.origins(), name, findings);
  return findings;
}

}  // namespace penstock::config
