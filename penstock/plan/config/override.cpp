#include "penstock/plan/config/override.h"

#include <optional>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/keys.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {
namespace {

json::Value make_value(std::shared_ptr<const json::Source> source, json::Value::Object object) {
  return {.data = std::move(object), .source = std::move(source), .span = {}};
}

// The text as a string; nothing for what JSON cannot hold: it could not be written to the resolved
// config either.
std::optional<json::Value> verbatim(const std::shared_ptr<const json::Source>& source) {
  const auto literal = std::make_shared<const json::Source>(json::Source{
      .name = source->name, .text = json_quote(source->text), .kind = json::SourceKind::Option});
  json::Value value = json::parse(literal);
  if (std::get<std::string>(value.data) != source->text) return {};
  value.source = source;
  value.span = {0, static_cast<std::uint32_t>(source->text.size())};
  return value;
}

std::optional<json::Value> parse_value(const Override& override) {
  const auto source = std::make_shared<const json::Source>(json::Source{
      .name = override.origin, .text = override.value, .kind = json::SourceKind::Option});
  try {
    return json::parse(source);
  } catch (const ParseError&) {
    return verbatim(source);
  }
}

// The object under `key`, made where there is none; null where something else stands there, which
// the reader then reports at its own place.
json::Value::Object* enter(json::Value::Object& object, const std::string& key,
                           const std::shared_ptr<const json::Source>& source) {
  json::Member* member = find(object, key);
  if (member == nullptr) {
    object.push_back({key, {}, make_value(source, {})});
    member = &object.back();
  }
  return std::get_if<json::Value::Object>(&member->value.data);
}

void put(json::Value::Object& object, const std::string& key, json::Value value) {
  if (value.is_null()) {
    std::erase_if(object, [&](const json::Member& member) { return member.key == key; });
  } else if (json::Member* member = find(object, key)) {
    *member = {key, {}, std::move(value)};
  } else {
    object.push_back({key, {}, std::move(value)});
  }
}

void apply(json::Value::Object& root, const Override& override, Problems& problems) {
  const Origin origin{.source = override.origin};
  const std::string unknown = unknown_path(override.path);
  if (!unknown.empty()) return problems.add(origin, unknown);
  std::optional<json::Value> value = parse_value(override);
  if (!value) return problems.add(origin, "the value is not UTF-8");
  const std::vector<std::string> keys = split(override.path, '.');
  json::Value::Object* object = &root;
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    object = enter(*object, keys[i], value->source);
    if (object == nullptr) return;
  }
  put(*object, keys.back(), *std::move(value));
}

// "schedule": "1f1b" is short for {"name": "1f1b"}, "schedule": "x.csv" for {"file": "x.csv"}.
bool names_a_file(std::string_view schedule) {
  return schedule.ends_with(".csv") || schedule.ends_with(".json") || schedule.ends_with(".txt");
}

void expand_schedule(json::Value::Object& root) {
  json::Member* member = find(root, "schedule");
  if (member == nullptr) return;
  const auto* text = std::get_if<std::string>(&member->value.data);
  if (text == nullptr) return;
  const std::string key = names_a_file(*text) ? "file" : "name";
  const json::Span span = member->value.span;
  const auto source = member->value.source;
  json::Value::Object object;
  object.push_back({key, span, std::move(member->value)});
  member->value = {.data = std::move(object), .source = source, .span = span};
}

}  // namespace

Override parse_override(std::string_view text) {
  const std::size_t equals = text.find('=');
  const std::string origin = str("--set ", text);
  if (equals == std::string_view::npos || equals == 0) {
    throw ConfigError(str(origin, ": expected KEY=VALUE, for example model.layers=2"));
  }
  return {.path = std::string(trim(text.substr(0, equals))),
          .value = std::string(text.substr(equals + 1)),
          .origin = origin};
}

void apply_overrides(json::Value& root, std::span<const Override> overrides, Problems& problems) {
  auto* object = std::get_if<json::Value::Object>(&root.data);
  if (object == nullptr) return;
  expand_schedule(*object);
  for (const Override& override : overrides) {
    apply(*object, override, problems);
    expand_schedule(*object);
  }
}

}  // namespace penstock::config
