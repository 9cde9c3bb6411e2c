// Phrases that the errors of this folder share.
//
// Used by every file here that refuses something.  Knows no key and no type of config.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/config/origin.h"

namespace penstock::config {

// either({"1", "2", "3"}) == "1, 2 or 3".
std::string either(const std::vector<std::string>& choices);
std::string either(const std::vector<std::int64_t>& choices);

// join_path("model", "layers") == "model.layers"; join_path("", "seed") == "seed".
std::string join_path(std::string_view section, std::string_view key);

// The problems of one input, gathered so that the user sees all of them at once.
class Problems {
 public:
  bool empty() const { return problems_.empty(); }
  // A hostile file can hold a hundred thousand problems: once full, further ones are dropped.
  bool full() const { return problems_.size() >= kMax; }
  void add(const Origin& origin, std::string text);
  // Throws: ConfigError with the first problem, in order of place, and a note for each other one.
  //         Returns when there is none.
  void raise() const;

 private:
  static constexpr std::size_t kMax = 20;
  struct Problem {
    Origin origin;
    std::string text;
  };
  std::vector<Problem> problems_;
};

}  // namespace penstock::config
