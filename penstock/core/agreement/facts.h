// What a rank has of the facts that ranks must have in common: rows of the table, with values.
//
// Whoever reads or is given something that other ranks are to have as well adds it here; train/
// compares.  Knows no ranks.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/agreement/fact.h"

namespace penstock::agreement {

struct StatedFact {
  Fact fact;
  std::string name;  // name_of() it.
  std::string value;

  friend bool operator==(const StatedFact&, const StatedFact&) = default;
};

class Facts {
 public:
  Facts() = default;
  Facts(std::initializer_list<std::pair<Fact, std::string>> facts);

  // Facts of a program, under names of its own.  No other facts need to have these names.
  static Facts of_program(const std::vector<std::pair<std::string, std::string>>& facts);
  // Facts by the names that the table has under that occasion.
  // Throws: std::invalid_argument for a name that it does not have.
  static Facts by_name(Occasion occasion,
                       const std::vector<std::pair<std::string, std::string>>& facts);

  void add(Fact fact, std::string value) { add(fact, "", std::move(value)); }
  // One of many: add(Fact::Layer, "3", "...") is the fact "layer 3".
  void add(Fact fact, std::string_view subject, std::string value);
  void add(const Facts& more);

  const std::vector<StatedFact>& all() const { return all_; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

  friend bool operator==(const Facts&, const Facts&) = default;

 private:
  std::vector<StatedFact> all_;
};

inline Facts operator+(Facts some, const Facts& more) {
  some.add(more);
  return some;
}

// A line each, "name=value", which no value breaks.
std::string to_text(const Facts& facts);

}  // namespace penstock::agreement
