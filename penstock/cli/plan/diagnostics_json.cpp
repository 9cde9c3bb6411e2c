#include "penstock/cli/plan/diagnostics_json.h"

#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

std::string to_json(const verify::Diagnostic& diagnostic) {
  std::vector<std::string> notes;
  notes.reserve(diagnostic.notes.size());
  for (const std::string& note : diagnostic.notes) notes.push_back(json_quote(note));
  return str("{\"code\": ", json_quote(to_string(diagnostic.code)),
             ", \"kind\": ", json_quote(kind(diagnostic.code)),
             ", \"rank\": ", diagnostic.rank ? str(*diagnostic.rank) : "null",
             ", \"step\": ", diagnostic.step ? str(*diagnostic.step) : "null",
             ", \"message\": ", json_quote(diagnostic.message), ", \"notes\": [", join(notes, ", "),
             "]}");
}

}  // namespace

std::string diagnostics_json(const std::vector<verify::Diagnostic>& diagnostics) {
  std::vector<std::string> items;
  items.reserve(diagnostics.size());
  for (const verify::Diagnostic& diagnostic : diagnostics) items.push_back(to_json(diagnostic));
  return "\"diagnostics\": [" + join(items, ",\n  ") + "]";
}

}  // namespace penstock::cli
