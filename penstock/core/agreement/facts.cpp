#include "penstock/core/agreement/facts.h"

#include <stdexcept>

#include "penstock/core/text.h"

namespace penstock::agreement {

Facts::Facts(std::initializer_list<std::pair<Fact, std::string>> facts) {
  for (const auto& [fact, value] : facts) add(fact, value);
}

Facts Facts::of_program(const std::vector<std::pair<std::string, std::string>>& facts) {
  Facts made;
  for (const auto& [name, value] : facts) made.add(Fact::OfProgram, name, value);
  return made;
}

Facts Facts::by_name(Occasion occasion,
                     const std::vector<std::pair<std::string, std::string>>& facts) {
  Facts made;
  for (const auto& [name, value] : facts) {
    const std::optional<Fact> found = find_fact(name);
    if (!found || !is_compared(*found, occasion)) {
      throw std::invalid_argument(str(in_quotes(name), " is no fact that ranks compare on the ",
                                      "occasion \"", name_of(occasion),
                                      "\" (penstock/core/agreement/fact_table.cpp)"));
    }
    made.all_.push_back({*found, name, value});
  }
  return made;
}

void Facts::add(Fact fact, std::string_view subject, std::string value) {
  all_.push_back({fact, name_of(fact, subject), std::move(value)});
}

void Facts::add(const Facts& more) { all_.insert(all_.end(), more.begin(), more.end()); }

std::string to_text(const Facts& facts) {
  std::string text;
  for (const StatedFact& each : facts) {
    text += each.name + "=";
    for (const char c : each.value) text += c == '\n' ? std::string("\\n") : std::string(1, c);
    text += "\n";
  }
  return text;
}

}  // namespace penstock::agreement
