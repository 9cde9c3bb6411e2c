#include "penstock/config/read.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "penstock/config/fields.h"
#include "penstock/config/keys.h"
#include "penstock/config/validate.h"
#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"

namespace penstock::config {
namespace {

// Visitor: takes each field's value out of the tree, and notes all that is wrong with it.
class Reader {
 public:
  Reader(const json::Value& root, Problems& problems) : problems_(problems) {
    scope_.object = as_object("the config", root);
  }

  template <class T, class Kind>
  void field(std::string_view key, T& value, const Kind& kind, std::string_view /*meaning*/) {
    const json::Member* member = take(key);
    if (member == nullptr) return;
    const std::string path = join_path(scope_.path, key);
    if (misplaced(path, *member)) return;
    if (const auto wrong = kind.read(member->value, value)) {
      failed_.insert(path);
      problems_.add(origin_of(*wrong->at), path + wrong->text);
    } else {
      origins_[path] = origin_of(member->value);
    }
  }

  template <class Body>
  void section(std::string_view key, Body&& body) {
    Scope inner{.path = join_path(scope_.path, key), .object = nullptr, .keys = {}};
    if (const json::Member* member = take(key)) {
      inner.object = as_object(inner.path, member->value);
    }
    std::swap(scope_, inner);
    body();
    report_unknown_keys();
    std::swap(scope_, inner);
  }

  // A choice that could not be read would make every field that depends on it look misplaced.
  template <class Body>
  void when(bool applies, const Selector& selector, Body&& body) {
    if (!applies && !failed_.contains(selector.key)) missing_choice_ = &selector;
    body();
    missing_choice_ = nullptr;
  }

  void report_unknown_keys() {
    if (scope_.object == nullptr) return;
    for (const json::Member& member : *scope_.object) {
      if (problems_.full()) return;
      const auto& keys = scope_.keys;
      if (std::find(keys.begin(), keys.end(), member.key) != keys.end()) continue;
      problems_.add(origin_of_key(member), unknown_key(member.key, scope_.path, keys));
    }
  }

  Origins& origins() { return origins_; }

 private:
  struct Scope {
    std::string path;                             // "" at the top level.
    const json::Value::Object* object = nullptr;  // Null when the section is absent or no object.
    std::vector<std::string> keys;                // The table's keys seen so far.
  };

  const json::Value::Object* as_object(const std::string& name, const json::Value& json) {
    const auto* object = std::get_if<json::Value::Object>(&json.data);
    if (object == nullptr) {
      problems_.add(origin_of(json), name + wrong_type("an object", json).text);
    }
    return object;
  }

  const json::Member* take(std::string_view key) {
    scope_.keys.emplace_back(key);
    return scope_.object == nullptr ? nullptr : find(*scope_.object, key);
  }

  bool misplaced(const std::string& path, const json::Member& member) {
    if (missing_choice_ == nullptr) return false;
    const auto& [key, choice] = *missing_choice_;
    problems_.add(origin_of_key(member), str(path, ": only ", key, " ", json_quote(choice),
                                             " takes it; remove it, or change ", key));
    return true;
  }

  Scope scope_;
  const Selector* missing_choice_ = nullptr;
  std::set<std::string, std::less<>> failed_;
  Problems& problems_;
  Origins origins_;
};

// The default name steps back for a file; validate() refuses both.
void settle_schedule(ScheduleConfig& schedule, const Origins& origins) {
  if (!schedule.file.empty() && !origins.contains("schedule.name")) {
    schedule.name.clear();
  }
}

}  // namespace

ReadConfig parse_config(std::string text, const std::string& name,
                        std::span<const Override> overrides) {
  json::Value root = json::parse(
      std::make_shared<const json::Source>(json::Source{.name = name, .text = std::move(text)}));
  Problems problems;
  apply_overrides(root, overrides, problems);
  ReadConfig result;
  Reader reader(root, problems);
  visit_config(reader, result.config);
  reader.report_unknown_keys();
  problems.raise();
  result.origins = std::move(reader.origins());
  settle_schedule(result.config.schedule, result.origins);
  validate(result.config, result.origins);
  return result;
}

ReadConfig read_config(const std::string& file, std::span<const Override> overrides) {
  return parse_config(read_file("config", file, json::kBytesMax), file, overrides);
}

}  // namespace penstock::config
