#include "penstock/core/json/unread_members.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "penstock/core/text.h"

namespace penstock::json {
namespace {

bool is_for(const PassedOver& row, std::string_view key) {
  if (!row.key.ends_with('*')) return row.key == key;
  return key.starts_with(row.key.substr(0, row.key.size() - 1));
}

std::optional<double> number_of(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value.data)) {
    return static_cast<double>(*whole);
  }
  const auto* real = std::get_if<double>(&value.data);
  return real == nullptr ? std::nullopt : std::optional(*real);
}

// "1" and "1.0" are one value.
bool is_value(const Value& value, const std::string& text) {
  const auto same = parse_number(text);
  return same ? number_of(value) == same : text_of(value) == text;
}

bool passes_over(const PassedOver& row, const Value& value) {
  if (row.values == "*") return true;
  return std::ranges::any_of(split(row.values, '|'),
                             [&](const std::string& text) { return is_value(value, text); });
}

bool is_unset(const Value& value) {
  if (value.is_null()) return true;
  if (const auto* flag = std::get_if<bool>(&value.data)) return !*flag;
  if (const auto* text = std::get_if<std::string>(&value.data)) return text->empty();
  if (const auto* list = std::get_if<Value::Array>(&value.data)) return list->empty();
  const auto* object = std::get_if<Value::Object>(&value.data);
  return object != nullptr && object->empty();
}

}  // namespace

std::vector<UnreadMember> unread_members(const Value::Object& object, const ReadKeys& read,
                                         std::span<const PassedOver> table) {
  std::vector<UnreadMember> unread;
  for (const Member& member : object) {
    if (read.contains(member.key) || member.value.is_null()) continue;
    const auto row = std::ranges::find_if(
        table, [&](const PassedOver& each) { return is_for(each, member.key); });
    if (row != table.end()) {
      if (!passes_over(*row, member.value)) unread.push_back({&member, std::string(row->why)});
    } else if (!is_unset(member.value)) {
      const std::vector<std::string> known(read.begin(), read.end());
      unread.push_back({&member, str("penstock does not know this key, and it may change results",
                                     suggest(member.key, known))});
    }
  }
  return unread;
}

}  // namespace penstock::json
