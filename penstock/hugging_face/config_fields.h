// The values of a config.json, each taken by its name, kind and default.
//
// families.h takes them.  Collects what is wrong, so that a user sees all of it at once.  Knows no
// family.  A key that is null counts as absent, as in transformers.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/json/tree.h"

namespace penstock::hugging_face {

class ConfigFields {
 public:
  // REQUIRES: `object` is an object, and outlives this.
  explicit ConfigFields(const json::Value& object);

  // The value; `fallback` where there is none.  Without a fallback an absent key is a problem.
  // Where there is a problem, the result is a value that is allowed.
  std::int64_t count(std::string_view key, std::optional<std::int64_t> fallback = {});
  std::optional<std::int64_t> optional_count(std::string_view key);
  double number(std::string_view key, std::optional<double> fallback = {});
  bool flag(std::string_view key, bool fallback);
  // One of `allowed`.
  std::string choice(std::string_view key, const std::string& fallback,
                     const std::vector<std::string>& allowed);
  std::optional<std::vector<std::string>> texts(std::string_view key);
  // The object at that key.
  std::optional<ConfigFields> object(std::string_view key);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Adds "config.json:3:5: KEY = VALUE: TEXT".
  void refuse(std::string_view key, const std::string& text);

  // Throws: ConfigError with all problems, if there are any.
  void finish() const;
  // Problems of an object() of this one become its own.
  void take_problems(const ConfigFields& inner);

 private:
  const json::Value* find(std::string_view key) const;
  void missing(std::string_view key, std::string_view what);

  const json::Value* object_;
  std::vector<std::string> problems_;
};

}  // namespace penstock::hugging_face
