// The visitor that takes the values of a configuration out of a JSON tree, and judges every key.
//
// parse_config() and check_config() run it over the table of a dialect (fields.h,
// initialize_fields.h).  Keys that the table lacks go to deepspeed_keys.h; what is in neither is
// unknown.  Knows no checks across keys (validate.h).
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/check.h"
#include "penstock/plan/config/classes.h"
#include "penstock/plan/config/deepspeed_keys.h"
#include "penstock/plan/config/dialect.h"
#include "penstock/plan/config/fields.h"
#include "penstock/plan/config/keys.h"
#include "penstock/plan/config/origin.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {

class Reader {
 public:
  // `findings`, where it is not null, gets one for every key.
  Reader(Dialect dialect, const json::Value& root, Problems& problems,
         std::vector<Finding>* findings = nullptr)
      : dialect_(dialect), problems_(problems), findings_(findings) {
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
      refuse(origin_of(*wrong->at), path, str(path, wrong->text, instead_of(member->value)),
             is_auto(member->value));
    } else {
      origins_[path] = origin_of(member->value);
      const std::string_view difference = difference_of(dialect_, path, member->value);
      note(*member, path, difference.empty() ? Verdict::Used : Verdict::Different, difference);
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
    judge_other_keys();
    std::swap(scope_, inner);
  }

  template <class Body>
  void effective(const Condition&, Body&& body) {
    body();
  }

  // Values stay JSON, each as the class takes it.  Without a class nothing is made of them, and
  // they must be known to some class.
  template <class Conditions>
  void arguments(std::string_view key, const ClassName& of, Arguments& values, const Conditions&) {
    section(key, [&] {
      if (scope_.object == nullptr) return;
      for (const json::Member& member : *scope_.object) {
        const std::string path = join_path(scope_.path, member.key);
        const Argument* const argument = find_argument(of, member.key);
        if (argument == nullptr && find_foreign(dialect_, path) != nullptr) continue;
        scope_.keys.push_back(member.key);
        if (argument == nullptr) {
          refuse(origin_of_key(member), path, unknown_argument(of, path, member.key));
        } else if (const auto wrong = argument->kind->read(member.value, values[member.key])) {
          values.erase(member.key);
          refuse(origin_of(*wrong->at), path, str(path, wrong->text, instead_of(member.value)),
                 is_auto(member.value));
        } else {
          origins_[path] = origin_of(member.value);
          const std::string_view difference = difference_of(dialect_, path, member.value);
          note(member, path, difference.empty() ? Verdict::Used : Verdict::Different, difference);
        }
      }
    });
  }

  // A choice that could not be read would make every field that depends on it look misplaced.
  template <class Body>
  void when(bool applies, const Selector& selector, Body&& body) {
    if (!applies && !failed_.contains(selector.key)) missing_choice_ = &selector;
    body();
    missing_choice_ = nullptr;
  }

  // Judges the keys of the open section that its fields did not take.
  void judge_other_keys() {
    if (scope_.object == nullptr) return;
    for (const json::Member& member : *scope_.object) {
      const auto& keys = scope_.keys;
      if (std::find(keys.begin(), keys.end(), member.key) != keys.end()) continue;
      judge(member, scope_.path, keys);
    }
  }

  Origins& origins() { return origins_; }
  const Origins& origins() const { return origins_; }

  // Keys whose values could not be read.
  const std::set<std::string, std::less<>>& failed() const { return failed_; }

 private:
  struct Scope {
    std::string path;                             // "" at the top level.
    const json::Value::Object* object = nullptr;  // Null when the section is absent or no object.
    std::vector<std::string> keys;                // The table's keys seen so far.
  };

  const json::Value::Object* as_object(const std::string& path, const json::Value& json) {
    const auto* object = std::get_if<json::Value::Object>(&json.data);
    if (object == nullptr) {
      refuse(origin_of(json), path, path + wrong_type("an object", json).text);
    }
    return object;
  }

  const json::Member* take(std::string_view key) {
    scope_.keys.emplace_back(key);
    const json::Member* member = scope_.object == nullptr ? nullptr : find(*scope_.object, key);
    if (member == nullptr || !is_left_open(*member)) return member;
    note_left_open(*member, join_path(scope_.path, key));
    return nullptr;
  }

  // DeepSpeed's words for a value that is as if it were absent; arguments of classes are what they
  // are.
  bool is_left_open(const json::Member& member) const {
    if (dialect_ != Dialect::Initialize || scope_.path.ends_with(".params")) return false;
    return member.value.is_null() || is_auto(member.value);
  }

  static bool is_auto(const json::Value& value) {
    const auto* text = std::get_if<std::string>(&value.data);
    return text != nullptr && *text == "auto";
  }

  // The words behind the reason why a value is refused.
  static std::string_view instead_of(const json::Value& value) {
    return is_auto(value) ? ", which is for transformers' Trainer to replace" : "";
  }

  void note_left_open(const json::Member& member, const std::string& path) {
    const bool may_be_replaced = is_auto(member.value);
    note(member, path, Verdict::Used,
         may_be_replaced ? "transformers' Trainer replaces \"auto\"; else it is as if absent" : "",
         may_be_replaced);
  }

  // The class's argument; of an unknown class, that of the first class that has it.
  static const Argument* find_argument(const ClassName& of, std::string_view name) {
    if (const NamedClass* const found = of.find()) return found->find(name);
    for (const NamedClass& each : classes_of(of.family)) {
      if (const Argument* const argument = each.find(name)) return argument;
    }
    return nullptr;
  }

  std::string unknown_argument(const ClassName& of, const std::string& path,
                               const std::string& name) const {
    const NamedClass* const found = of.find();
    if (found == nullptr) return unknown_key(dialect_, name, scope_.path, {});
    std::vector<std::string> names;
    for (const Argument& argument : found->arguments) names.emplace_back(argument.name);
    return str(path, ": ", found->name, " has no such argument", suggest(name, names));
  }

  bool misplaced(const std::string& path, const json::Member& member) {
    if (missing_choice_ == nullptr) return false;
    const auto& [key, choices] = *missing_choice_;
    refuse(origin_of_key(member), path,
           str(path, ": only ", key, " ", choices, " takes it; remove it, or change ", key));
    return true;
  }

  // A key that penstock lacks, or a section of such: DeepSpeed's, or nobody's.
  void judge(const json::Member& member, const std::string& section,
             const std::vector<std::string>& siblings) {
    if (problems_.full() && findings_ == nullptr) return;
    const std::string path = join_path(section, member.key);
    const bool is_name = member.key.find('.') == std::string::npos;
    const ForeignKeys* const row = is_name ? find_foreign(dialect_, path) : nullptr;
    const bool is_section = is_name && is_foreign_section(dialect_, path);
    if ((row != nullptr || is_section) && is_left_open(member)) {
      note_left_open(member, path);
    } else if (row != nullptr && is_taken(*row, member.value)) {
      note(member, path, Verdict::Different, row->fact);
    } else if (row != nullptr) {
      refuse(origin_of(member.value), path,
             str(path, " = ", json::found(member.value), ": ", refusal(*row)));
    } else if (is_section) {
      judge_all(path, member.value);
    } else {
      refuse(origin_of_key(member), path, unknown_key(dialect_, member.key, section, siblings));
    }
  }

  void judge_all(const std::string& section, const json::Value& json) {
    const json::Value::Object* const object = as_object(section, json);
    if (object == nullptr) return;
    for (const json::Member& member : *object) judge(member, section, {});
  }

  void note(const json::Member& member, const std::string& path, Verdict verdict,
            std::string_view why, bool is_auto = false) {
    if (findings_ == nullptr) return;
    require_room();
    findings_->push_back({origin_of_key(member), path, verdict, std::string(why), is_auto});
  }

  void refuse(const Origin& origin, const std::string& path, const std::string& why,
              bool is_auto = false) {
    problems_.add(origin, why);
    if (findings_ == nullptr) return;
    require_room();
    findings_->push_back({origin, path, Verdict::Refused, why, is_auto});
  }

  void require_room() const {
    if (findings_->size() < kFindingsMax) return;
    throw ConfigError(str(findings_->front().origin.source, ": more than ", kFindingsMax,
                          " keys; is it the right file?"));
  }

  Dialect dialect_;
  Scope scope_;
  const Selector* missing_choice_ = nullptr;
  std::set<std::string, std::less<>> failed_;
  Problems& problems_;
  std::vector<Finding>* findings_;
  Origins origins_;
};

}  // namespace penstock::config
