#include "penstock/cli/rank_start.h"

#include <cstdlib>
#include <memory>

#include "penstock/cli/memory_file.h"
#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/core/utf8.h"

namespace penstock::cli {
namespace {

// Names the descriptor from which a rank reads its start.
constexpr const char* kStartVariable = "PENSTOCK_START_FD";
// The configuration, as a string of JSON, and the rest.
constexpr std::size_t kBytesMax = 8 * json::kBytesMax;

std::string to_json(const config::Override& each) {
  return str("[", json_quote(each.path), ", ", json_quote(each.value), ", ",
             json_quote(each.origin), "]");
}

const json::Value& member(const json::Value& object, std::string_view key) {
  const json::Member* found = json::find(std::get<json::Value::Object>(object.data), key);
  if (found == nullptr) throw Error(str("the start of this rank has no \"", key, "\""));
  return found->value;
}

const std::string& text_in(const json::Value& value) { return std::get<std::string>(value.data); }

const json::Value::Array& array_in(const json::Value& value) {
  return std::get<json::Value::Array>(value.data);
}

}  // namespace

void RankStart::set(const std::string& key, const std::string& value, const std::string& origin) {
  overrides.push_back({.path = key, .value = value, .origin = origin});
}

config::ReadConfig RankStart::read() const { return config::parse_config(text, name, overrides); }

void check_text(const RankStart& start) {
  for (const std::string& each : {start.name, start.host}) {
    if (!is_utf8(each)) throw ConfigError(str(json_quote(each), " is not UTF-8"));
  }
}

std::string to_json(const RankStart& start) {
  std::vector<std::string> overrides, faults;
  for (const config::Override& each : start.overrides) overrides.push_back(to_json(each));
  for (const inject::Fault& each : start.faults) faults.push_back(json_quote(to_string(each)));
  return str("{\"name\": ", json_quote(start.name), ", \"host\": ", json_quote(start.host),
             ", \"faults\": [", join(faults, ", "), "], \"overrides\": [", join(overrides, ", "),
             "], \"text\": ", json_quote(start.text), "}");
}

RankStart parse_rank_start(std::string text) {
  const json::Value root = json::parse(std::make_shared<json::Source>(json::Source{
                                           .name = "start of a rank", .text = std::move(text)}),
                                       kBytesMax);
  RankStart start{.name = text_in(member(root, "name")),
                  .text = text_in(member(root, "text")),
                  .host = text_in(member(root, "host"))};
  for (const json::Value& each : array_in(member(root, "overrides"))) {
    const auto& parts = array_in(each);
    start.set(text_in(parts.at(0)), text_in(parts.at(1)), text_in(parts.at(2)));
  }
  for (const json::Value& each : array_in(member(root, "faults"))) {
    start.faults.push_back(inject::parse_fault(text_in(each)));
  }
  return start;
}

HandedOn::HandedOn(const RankStart& start) : file_(memory_file("penstock-start")) {
  write_whole(file_.get(), to_json(start));
}

std::pair<std::string, std::string> HandedOn::variable() const {
  return {kStartVariable, std::to_string(file_.get())};
}

RankStart handed_on() {
  const char* descriptor = std::getenv(kStartVariable);
  const auto file = descriptor == nullptr ? std::nullopt : parse_integer(descriptor);
  if (!file) throw Error(str(kStartVariable, " is not set: run `penstock` instead"));
  return parse_rank_start(read_whole(static_cast<int>(*file)));
}

}  // namespace penstock::cli
