#include "penstock/config/override.h"

#include <utility>
#include <vector>

#include "penstock/config/json_tree.h"
#include "penstock/config/keys.h"
#include "penstock/config/wording.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::config {
namespace {

JsonValue make_value(std::shared_ptr<const Source> source, JsonValue::Object object) {
  return {.data = std::move(object), .source = std::move(source), .span = {}};
}

// The text as a string.  What JSON cannot hold could not be written to the resolved config either.
JsonValue verbatim(const std::shared_ptr<const Source>& source) {
  const auto literal = std::make_shared<const Source>(
      Source{.name = source->name, .text = json_quote(source->text), .is_file = false});
  JsonValue value = parse_json(literal);
  if (std::get<std::string>(value.data) != source->text) {
    throw ConfigError(str(source->name, ": the value is not UTF-8"));
  }
  value.source = source;
  value.span = {0, static_cast<std::uint32_t>(source->text.size())};
  return value;
}

JsonValue parse_value(const Override& override) {
  const auto source = std::make_shared<const Source>(
      Source{.name = override.origin, .text = override.value, .is_file = false});
  try {
    return parse_json(source);
  } catch (const ParseError&) {
    return verbatim(source);
  }
}

// The object under `key`, made where there is none; null where something else stands there, which
// the reader then reports at its own place.
JsonValue::Object* enter(JsonValue::Object& object, const std::string& key,
                         const std::shared_ptr<const Source>& source) {
  JsonMember* member = find(object, key);
  if (member == nullptr) {
    object.push_back({key, {}, make_value(source, {})});
    member = &object.back();
  }
  return std::get_if<JsonValue::Object>(&member->value.data);
}

void put(JsonValue::Object& object, const std::string& key, JsonValue value) {
  if (value.is_null()) {
    std::erase_if(object, [&](const JsonMember& member) { return member.key == key; });
  } else if (JsonMember* member = find(object, key)) {
    *member = {key, {}, std::move(value)};
  } else {
    object.push_back({key, {}, std::move(value)});
  }
}

void apply(JsonValue::Object& root, const Override& override) {
  const std::string unknown = unknown_path(override.path);
  if (!unknown.empty()) throw ConfigError(str(override.origin, ": ", unknown));
  const std::vector<std::string> keys = split(override.path, '.');
  JsonValue value = parse_value(override);
  JsonValue::Object* object = &root;
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    object = enter(*object, keys[i], value.source);
    if (object == nullptr) return;
  }
  put(*object, keys.back(), std::move(value));
}

// "schedule": "1f1b" is short for {"name": "1f1b"}, "schedule": "x.csv" for {"file": "x.csv"}.
void expand_schedule(JsonValue::Object& root) {
  JsonMember* member = find(root, "schedule");
  if (member == nullptr) return;
  const auto* text = std::get_if<std::string>(&member->value.data);
  if (text == nullptr) return;
  const std::string key = text->ends_with(".csv") ? "file" : "name";
  const Span span = member->value.span;
  const auto source = member->value.source;
  JsonValue::Object object;
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

void apply_overrides(JsonValue& root, std::span<const Override> overrides) {
  auto* object = std::get_if<JsonValue::Object>(&root.data);
  if (object == nullptr) return;
  expand_schedule(*object);
  for (const Override& override : overrides) {
    apply(*object, override);
    expand_schedule(*object);
  }
}

}  // namespace penstock::config
