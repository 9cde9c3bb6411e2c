#include "penstock/runtime/hugging_face/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <variant>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/runtime/hugging_face/config_keys.h"

namespace penstock::hugging_face {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnds = "eos_token_id";
constexpr const char* kFile = "/generation_config.json";

// Reads a number, or a list of them.
std::vector<std::int64_t> token_list(const json::Value& value) {
  std::vector<std::int64_t> tokens;
  const auto add = [&](const json::Value& each) {
    const auto* const token = std::get_if<std::int64_t>(&each.data);
    if (token == nullptr) {
      throw ConfigError(str(json::to_string(json::origin_of(each)), ": ", kEnds,
                            ": expected a token's number, found ", json::found(each)));
    }
    tokens.push_back(*token);
  };
  if (const auto* const list = std::get_if<json::Value::Array>(&value.data)) {
    std::ranges::for_each(*list, add);
  } else {
    add(value);
  }
  return tokens;
}

// The object in that file; absent where there is no such file.
std::optional<json::Value> read_object(const std::string& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  const std::string text = read_foreign_file("the configuration of a model", file, json::kBytesMax);
  json::Value value =
      json::parse(std::make_shared<json::Source>(json::Source{.name = file, .text = text}));
  if (std::holds_alternative<json::Value::Object>(value.data)) return value;
  throw ConfigError(str(json::to_string(json::origin_of(value)), ": expected an object, found ",
                        json::found(value)));
}

std::optional<std::vector<std::int64_t>> ends_in(const std::optional<json::Value>& config) {
  if (!config) return std::nullopt;
  const json::Member* const found = json::find(std::get<json::Value::Object>(config->data), kEnds);
  if (found == nullptr || found->value.is_null()) return std::nullopt;
  return token_list(found->value);
}

}  // namespace

GenerationConfig read_generation_config(const std::string& path) {
  const auto own = read_object(path + kFile);
  GenerationConfig config;
  auto ends = ends_in(own);
  if (!ends) ends = ends_in(read_object(path + "/config.json"));
  if (ends) config.ends = std::move(*ends);
  if (!own) return config;
  const auto& members = std::get<json::Value::Object>(own->data);
  for (const auto& [member, why] :
       json::unread_members(members, {kEnds}, passed_over_generation_keys())) {
    config.passed_over.push_back(str(member->key, " = ", json::found(member->value)));
  }
  return config;
}

std::string generation_config_with(const std::set<std::int64_t>& ends, const std::string& path) {
  std::vector<std::int64_t> all = read_generation_config(path).ends;
  const std::size_t before = all.size();
  for (const std::int64_t end : ends) {
    if (std::ranges::find(all, end) == all.end()) all.push_back(end);
  }
  const std::string value = str("[", join(all, ", "), "]");
  const auto own = read_object(path + kFile);
  if (!own) return str("{\"", kEnds, "\": ", value, "}\n");
  std::string text = own->source->text;
  if (all.size() == before) return text;
  const auto& members = std::get<json::Value::Object>(own->data);
  if (const json::Member* const found = json::find(members, kEnds)) {
    const json::Span span = found->value.span;
    return text.replace(span.begin, span.end - span.begin, value);
  }
  const std::string member = str("\n  \"", kEnds, "\": ", value, members.empty() ? "\n" : ",");
  return text.insert(own->span.begin + 1, member);
}

}  // namespace penstock::hugging_face
