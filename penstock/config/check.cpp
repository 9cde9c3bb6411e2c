#include "penstock/config/check.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "penstock/config/initialize_fields.h"
#include "penstock/config/override.h"
#include "penstock/config/reader.h"

namespace penstock::config {
namespace {

// An error names the key first; a finding has it already.
std::string without_key(const std::string& why, const std::string& key) {
  if (!why.starts_with(key)) return why;
  const std::size_t rest = why.find_first_not_of(": ", key.size());
  return rest == std::string::npos ? "" : why.substr(rest);
}

void note_absent(Taker taker, const Origins& origins, const std::string& name,
                 std::vector<Finding>& findings) {
  for (const AbsentKey& key : absent_keys(taker)) {
    if (origins.contains(key.path)) continue;
    if (!key.given.empty() && !origins.contains(key.given)) continue;
    findings.push_back(
        {{.source = name}, std::string(key.path), Verdict::Different, std::string(key.difference)});
  }
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

std::vector<Finding> check_config(Taker taker, std::string text, const std::string& name) {
  json::Value root = json::parse(
      std::make_shared<const json::Source>(json::Source{.name = name, .text = std::move(text)}));
  Problems problems;
  apply_overrides(root, {}, problems);
  std::vector<Finding> findings;
  Reader reader(taker, root, problems, &findings);
  switch (taker) {
    case Taker::Train: {
      Config config;
      visit_config(reader, config);
      break;
    }
    case Taker::Initialize: {
      InitializeConfig config;
      visit_initialize(reader, config);
      break;
    }
  }
  reader.judge_other_keys();
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.origin < b.origin; });
  for (Finding& finding : findings) finding.why = without_key(finding.why, finding.key);
  note_absent(taker, reader.origins(), name, findings);
  return findings;
}

}  // namespace penstock::config
