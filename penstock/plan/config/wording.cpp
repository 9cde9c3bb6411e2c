#include "penstock/plan/config/wording.h"

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::config {

std::string either(const std::vector<std::string>& choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i];
  }
  return text;
}

std::string either(const std::vector<std::int64_t>& choices) {
  std::vector<std::string> words;
  for (const std::int64_t choice : choices) words.push_back(std::to_string(choice));
  return either(words);
}

std::string join_path(std::string_view section, std::string_view key) {
  if (section.empty()) return std::string(key);
  return str(section, ".", key);
}

void Problems::add(const Origin& origin, std::string text) {
  if (!full()) problems_.push_back({origin, std::move(text)});
}

void Problems::raise() const {
  if (problems_.empty()) return;
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Problem& a, const Problem& b) { return a.origin < b.origin; });
  std::vector<std::string> lines;
  for (const Problem& problem : sorted) {
    const std::string where = to_string(problem.origin);
    lines.push_back(where.empty() ? problem.text : str(where, ": ", problem.text));
  }
  if (full()) lines.push_back("there may be more problems; only the first ones are listed");
  throw ConfigError(lines.front(), {lines.begin() + 1, lines.end()});
}

}  // namespace penstock::config
