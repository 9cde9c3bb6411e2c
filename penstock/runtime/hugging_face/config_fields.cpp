#include "penstock/runtime/hugging_face/config_fields.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "penstock/core/error.h"
#include "penstock/core/json/origin.h"
#include "penstock/core/text.h"

namespace penstock::hugging_face {

ConfigFields::ConfigFields(const json::Value& object) : object_(&object) {}

const json::Value* ConfigFields::find(std::string_view key) const {
  read_.emplace(key);
  const auto& members = std::get<json::Value::Object>(object_->data);
  const json::Member* const member = json::find(members, key);
  return member == nullptr || member->value.is_null() ? nullptr : &member->value;
}

bool ConfigFields::is_written(std::string_view key) const {
  return json::find(std::get<json::Value::Object>(object_->data), key) != nullptr;
}

std::vector<std::string> ConfigFields::keys() const {
  std::vector<std::string> keys;
  for (const json::Member& each : std::get<json::Value::Object>(object_->data)) {
    keys.push_back(each.key);
  }
  return keys;
}

void ConfigFields::refuse_unread(std::span<const json::PassedOver> table) {
  const auto& members = std::get<json::Value::Object>(object_->data);
  for (const auto& [member, why] : json::unread_members(members, read_, table)) {
    refuse(member->key, why);
  }
}

void ConfigFields::refuse(std::string_view key, const std::string& text) {
  const json::Value* const value = find(key);
  problems_.push_back(value == nullptr ? str(to_string(origin_of(*object_)), ": ", key, ": ", text)
                                       : str(to_string(origin_of(*value)), ": ", key, " = ",
                                             json::found(*value), ": ", text));
}

void ConfigFields::missing(std::string_view key, std::string_view what) {
  refuse(key, str("is missing; expected ", what));
}

std::optional<std::int64_t> ConfigFields::optional_count(std::string_view key, std::int64_t most) {
  const json::Value* const value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* const count = std::get_if<std::int64_t>(&value->data);
  if (count != nullptr && *count >= 1 && *count <= most) return *count;
  refuse(key, str("expected an integer in [1, ", most, "]"));
  return std::nullopt;
}

std::int64_t ConfigFields::count(std::string_view key, std::optional<std::int64_t> fallback,
                                 std::int64_t most) {
  if (!has(key) && !fallback) missing(key, "an integer");
  return optional_count(key, most).value_or(fallback.value_or(1));
}

namespace {

// A number above 0.
std::optional<double> positive(const json::Value& value) {
  if (const auto* const integer = std::get_if<std::int64_t>(&value.data)) {
    if (*integer > 0) return static_cast<double>(*integer);
  }
  if (const auto* const number = std::get_if<double>(&value.data)) {
    if (*number > 0) return *number;
  }
  return std::nullopt;
}

std::optional<std::string> text_of(const json::Value& value) {
  const auto* const text = std::get_if<std::string>(&value.data);
  return text == nullptr ? std::nullopt : std::optional(*text);
}

std::optional<bool> flag_of(const json::Value& value) {
  if (const bool* const flag = std::get_if<bool>(&value.data)) return *flag;
  const auto* const integer = std::get_if<std::int64_t>(&value.data);
  if (integer == nullptr || (*integer != 0 && *integer != 1)) return std::nullopt;
  return *integer == 1;
}

}  // namespace

double ConfigFields::number(std::string_view key, std::optional<double> fallback) {
  const json::Value* const value = find(key);
  if (value == nullptr) {
    if (!fallback) missing(key, "a number");
    return fallback.value_or(1.0);
  }
  if (const auto number = positive(*value)) return *number;
  refuse(key, "expected a number above 0");
  return 1.0;
}

std::optional<double> ConfigFields::optional_number(std::string_view key,
                                                    std::optional<double> fallback) {
  if (has(key)) return number(key);
  return is_written(key) ? std::nullopt : fallback;
}

template <class Value>
std::optional<std::vector<Value>> ConfigFields::list(
    std::string_view key, const char* what, std::optional<Value> (*take)(const json::Value&)) {
  const json::Value* const value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<Value> all;
  if (const auto* const members = std::get_if<json::Value::Array>(&value->data)) {
    for (const json::Value& each : *members) {
      if (auto taken = take(each)) all.push_back(std::move(*taken));
    }
    if (all.size() == members->size()) return all;
  }
  refuse(key, str("expected a list of ", what));
  return std::nullopt;
}

std::optional<std::vector<double>> ConfigFields::numbers(std::string_view key) {
  return list<double>(key, "numbers above 0", positive);
}

std::optional<std::vector<std::string>> ConfigFields::texts(std::string_view key) {
  return list<std::string>(key, "strings", text_of);
}

std::optional<std::vector<bool>> ConfigFields::flags(std::string_view key) {
  return list<bool>(key, "1 and 0", flag_of);
}

bool ConfigFields::flag(std::string_view key, bool fallback) {
  const json::Value* const value = find(key);
  if (value == nullptr) return fallback;
  if (const bool* const flag = std::get_if<bool>(&value->data)) return *flag;
  refuse(key, "expected true or false");
  return fallback;
}

std::string ConfigFields::choice(std::string_view key, const std::string& fallback,
                                 const std::vector<std::string>& allowed) {
  const json::Value* const value = find(key);
  if (value == nullptr) return fallback;
  const auto* const text = std::get_if<std::string>(&value->data);
  if (text != nullptr && std::ranges::find(allowed, *text) != allowed.end()) return *text;
  std::vector<std::string> quoted;
  for (const std::string& each : allowed) quoted.push_back(in_quotes(each));
  refuse(key,
         str("penstock has ", join(quoted, ", "), text == nullptr ? "" : suggest(*text, allowed)));
  return fallback;
}

std::optional<ConfigFields> ConfigFields::object(std::string_view key) {
  const json::Value* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (std::holds_alternative<json::Value::Object>(value->data)) return ConfigFields(*value);
  refuse(key, "expected an object");
  return std::nullopt;
}

void ConfigFields::take_problems(const ConfigFields& inner) {
  problems_.insert(problems_.end(), inner.problems_.begin(), inner.problems_.end());
}

void ConfigFields::finish() const {
  if (problems_.empty()) return;
  throw ConfigError(problems_.front(), {problems_.begin() + 1, problems_.end()});
}

}  // namespace penstock::hugging_face
