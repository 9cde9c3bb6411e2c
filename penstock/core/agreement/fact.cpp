#include "penstock/core/agreement/fact.h"

#include <algorithm>
#include <array>

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::agreement {
namespace {

constexpr std::array<std::string_view, 7> kOccasionNames = {
    "trainer", "layers", "program", "engine", "step", "checkpoint", "generation"};

constexpr std::array<std::string_view, 3> kStandIns = {"KEY", "NAME", "N"};

// A row's name around its word in capitals: {"token source ", " to validate"}.
struct Pattern {
  std::string_view before;
  std::string_view after;
  bool is_of_many = false;
};

Pattern pattern_of(std::string_view name) {
  std::size_t at = 0;
  for (const std::string& word : split(name, ' ')) {
    if (std::ranges::count(kStandIns, word) > 0) {
      return {name.substr(0, at), name.substr(at + word.size()), true};
    }
    at += word.size() + 1;
  }
  return {.before = name};
}

// The patterns of the table's rows, made once: a model may have thousands of parameters, whose
// names are looked up.
const std::vector<Pattern>& patterns() {
  static const auto kPatterns = [] {
    std::vector<Pattern> all;
    for (const FactRow& row : fact_table()) all.push_back(pattern_of(row.name));
    return all;
  }();
  return kPatterns;
}

bool fits(const Pattern& pattern, std::string_view name) {
  if (!pattern.is_of_many) return name == pattern.before;
  return name.size() > pattern.before.size() + pattern.after.size() &&
         name.starts_with(pattern.before) && name.ends_with(pattern.after);
}

}  // namespace

std::string_view name_of(Occasion occasion) {
  return kOccasionNames[static_cast<std::size_t>(occasion)];
}

std::optional<Occasion> find_occasion(std::string_view name) {
  const auto found = std::ranges::find(kOccasionNames, name);
  if (found == kOccasionNames.end()) return std::nullopt;
  return static_cast<Occasion>(found - kOccasionNames.begin());
}

std::string_view words_of(Occasion occasion) {
  switch (occasion) {
    case Occasion::Step:
      return "do not take the same step";
    case Occasion::Checkpoint:
      return "do not load the same checkpoint";
    case Occasion::Generation:
      return "do not generate the same text";
    case Occasion::Trainer:
    case Occasion::Layers:
    case Occasion::Program:
    case Occasion::Engine:
      break;
  }
  return "do not run the same thing";
}

const FactRow& row_of(Fact fact) {
  const std::span<const FactRow> table = fact_table();
  const auto found = std::ranges::find(table, fact, &FactRow::fact);
  PENSTOCK_CHECK(found != table.end(), static_cast<int>(fact));
  return *found;
}

bool is_compared(Fact fact, Occasion occasion) {
  return std::ranges::count(row_of(fact).occasions, occasion) > 0;
}

std::string name_of(Fact fact, std::string_view subject) {
  const Pattern pattern = pattern_of(row_of(fact).name);
  PENSTOCK_CHECK(pattern.is_of_many != subject.empty(), row_of(fact).name, " of ", subject);
  return str(pattern.before, subject, pattern.after);
}

// The longest pattern that fits: "token source 1 to validate" is no "token source N".
std::optional<Fact> find_fact(std::string_view name) {
  const FactRow* best = nullptr;
  for (std::size_t i = 0; i < fact_table().size(); ++i) {
    const FactRow& row = fact_table()[i];
    if (row.fact == Fact::OfProgram || !fits(patterns()[i], name)) continue;
    if (best == nullptr || row.name.size() > best->name.size()) best = &row;
  }
  return best == nullptr ? std::nullopt : std::optional(best->fact);
}

}  // namespace penstock::agreement
