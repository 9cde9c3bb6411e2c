// The values of a config.json, each taken by its name, kind and default.
//
// families.h takes them.  Collects what is wrong, so that a user sees all of it at once.  Knows no
// family.  A key that is null counts as absent, as in transformers.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/json/tree.h"
#include "penstock/core/json/unread_members.h"

namespace penstock::hugging_face {

// Far beyond any model, so that products of sizes cannot overflow.
inline constexpr std::int64_t kSizeMax = std::int64_t{1} << 30;

class ConfigFields {
 public:
  // REQUIRES: `object` is an object, and outlives this.
  explicit ConfigFields(const json::Value& object);

  // The value; `fallback` where there is none.  Without a fallback an absent key is a problem.
  // Where there is a problem, the result is a value that is allowed.
  std::int64_t count(std::string_view key, std::optional<std::int64_t> fallback = {},
                     std::int64_t most = kSizeMax);
  std::optional<std::int64_t> optional_count(std::string_view key, std::int64_t most = kSizeMax);
  double number(std::string_view key, std::optional<double> fallback = {});
  // None where the key is null, `fallback` where it is not there.
  std::optional<double> optional_number(std::string_view key, std::optional<double> fallback);
  std::optional<std::vector<double>> numbers(std::string_view key);
  bool flag(std::string_view key, bool fallback);
  // A value that is one of `allowed`.
  std::string choice(std::string_view key, const std::string& fallback,
                     const std::vector<std::string>& allowed);
  std::optional<std::vector<std::string>> texts(std::string_view key);
  // A list of true and false, or of 1 and 0.
  std::optional<std::vector<bool>> flags(std::string_view key);
  // The object at that key.
  std::optional<ConfigFields> object(std::string_view key);

  // All keys, in their order.
  std::vector<std::string> keys() const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Whether the key is there, also with null: some keys have a default that null is not.
  bool is_written(std::string_view key) const;
  // Adds "config.json:3:5: KEY = VALUE: TEXT".
  void refuse(std::string_view key, const std::string& text);

  // Refuses what is set, was not asked for, and is not passed over by a row.
  void refuse_unread(std::span<const json::PassedOver> table);

  // Throws: ConfigError with all problems, if there are any.
  void finish() const;
  // Problems of an object() of this one become its own.
  void take_problems(const ConfigFields& inner);

 private:
  // Reads each of a list with `take`, which returns none for what is no such value.
  template <class Value>
  std::optional<std::vector<Value>> list(std::string_view key, const char* what,
                                         std::optional<Value> (*take)(const json::Value&));
  const json::Value* find(std::string_view key) const;
  void missing(std::string_view key, std::string_view what);

  const json::Value* object_;
  mutable json::ReadKeys read_;
  std::vector<std::string> problems_;
};

}  // namespace penstock::hugging_face
