// What a value of the configuration may be: its JSON form, its range, its words in errors.
//
// fields.h gives every key one of these; the visitors of read, write, validate and keys only walk.
// Knows no key.  A kind K of values of type T has
//   noun()        what it is, for "expected ..., found ..."
//   allowed()     what its value must be, or "" where the noun says it all
//   read(json, T&)  a Complaint, or nothing and the value; it also checks
//   check(T)        a complaint's text, or nothing: for values that did not come from JSON
//   write(T)        JSON text; read(parse(write(x))) gives x
// A complaint continues the key's name: "model.layers" + " = 0: must be at least 1".
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {

struct Complaint {
  std::string text;
  const json::Value* at = nullptr;  // What is wrong: the value, or one element of it.
};

Complaint wrong_type(std::string_view noun, const json::Value& json);

struct Integer {
  static constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  std::int64_t low = 0;
  std::int64_t high = kAny;

  std::string noun() const { return "an integer"; }
  std::string allowed() const;
  std::optional<Complaint> read(const json::Value& json, std::int64_t& value) const;
  std::optional<std::string> check(std::int64_t value) const;
  std::string write(std::int64_t value) const { return std::to_string(value); }
};

// An enum whose values are the numbers from 0 to `last`.
template <class Enum>
struct Numbered {
  Enum last;

  std::string noun() const { return numbers().noun(); }
  std::string allowed() const { return numbers().allowed(); }
  std::optional<Complaint> read(const json::Value& json, Enum& value) const {
    std::int64_t number = 0;
    auto complaint = numbers().read(json, number);
    if (!complaint) value = static_cast<Enum>(number);
    return complaint;
  }
  std::optional<std::string> check(Enum value) const {
    return numbers().check(static_cast<std::int64_t>(value));
  }
  std::string write(Enum value) const { return numbers().write(static_cast<std::int64_t>(value)); }

 private:
  Integer numbers() const { return {0, static_cast<std::int64_t>(last)}; }
};

// Steps between two events; "Infinity", which is the largest number, stands for no event.
// (Accelerate gives steps_per_print so; JSON has no such number.)
struct Interval {
  std::int64_t low = 0;
  std::int64_t high = Integer::kAny;

  std::string noun() const { return "\"Infinity\" or an integer"; }
  std::string allowed() const { return steps().allowed(); }
  std::optional<Complaint> read(const json::Value& json, std::int64_t& value) const;
  std::optional<std::string> check(std::int64_t value) const { return steps().check(value); }
  std::string write(std::int64_t value) const { return steps().write(value); }

 private:
  Integer steps() const { return {low, high}; }
};

struct Number {
  static constexpr double kAny = std::numeric_limits<double>::infinity();
  double low = 0;
  double high = kAny;  // Itself never a value when it is kAny.
  bool without_low = false;
  bool without_high = false;

  std::string noun() const { return "a number"; }
  std::string allowed() const;
  std::optional<Complaint> read(const json::Value& json, double& value) const;
  std::optional<std::string> check(double value) const;
  std::string write(double value) const { return shortest(value); }
};

// A string.  On the command line the text as it is, quotes or not: `--data 2024` is a path.
struct Text {
  bool may_be_empty = true;  // False: an empty value means that the key is absent; null in JSON.

  std::string noun() const { return may_be_empty ? "a string" : "a string that is not empty"; }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::string& value) const;
  std::optional<std::string> check(const std::string& value) const;
  std::string write(const std::string& value) const {
    return !may_be_empty && value.empty() ? "null" : json_quote(value);
  }
};

struct Flag {
  std::string noun() const { return "true or false"; }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, bool& value) const;
  std::optional<std::string> check(bool) const { return {}; }
  std::string write(bool value) const { return value ? "true" : "false"; }
};

// A regular expression, or nothing.
struct Pattern {
  std::string noun() const { return "a regular expression"; }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::string& value) const;
  std::optional<std::string> check(const std::string& value) const;
  std::string write(const std::string& value) const { return json_quote(value); }
};

// pipeline.partition, which holds both the method and, after "type:", the pattern.
struct Partition {
  std::string noun() const;
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, PipelineConfig& value) const;
  std::optional<std::string> check(const PipelineConfig& value) const;
  std::string write(const PipelineConfig& value) const;
};

// One value of an enum and its name in JSON.
template <class Enum>
struct Name {
  Enum value;
  std::string_view name;
};

// The complaint about a name that is none of `names`.
Complaint wrong_choice(const json::Value& json, const std::vector<std::string>& names);

template <class Enum>
struct Choice {
  std::span<const Name<Enum>> names;

  std::vector<std::string> list() const {
    std::vector<std::string> list;
    for (const Name<Enum>& entry : names) list.emplace_back(entry.name);
    return list;
  }
  std::string noun() const {
    std::vector<std::string> all = list();
    for (std::string& name : all) name = json_quote(name);
    return either(all);
  }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, Enum& value) const {
    const auto* text = std::get_if<std::string>(&json.data);
    if (text == nullptr) return wrong_type(noun(), json);
    for (const Name<Enum>& entry : names) {
      if (entry.name != *text) continue;
      value = entry.value;
      return {};
    }
    return wrong_choice(json, list());
  }
  std::optional<std::string> check(Enum value) const {
    for (const Name<Enum>& entry : names) {
      if (entry.value == value) return {};
    }
    return ": not a value of its enum";
  }
  std::string write(Enum value) const {
    for (const Name<Enum>& entry : names) {
      if (entry.value == value) return json_quote(entry.name);
    }
    return "null";
  }
};

// data.sources: objects with "path", and, where they differ from the defaults, "weight", "format".
struct Sources {
  Choice<DataFormat> formats;

  std::string noun() const { return "a list of objects {\"path\", \"weight\", \"format\"}"; }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::vector<DataSource>& values) const;
  std::optional<std::string> check(const std::vector<DataSource>& values) const;
  std::string write(const std::vector<DataSource>& values) const;

 private:
  std::optional<Complaint> read_one(const json::Value& json, DataSource& value) const;
};

// data.validation: a path, or an object of paths by the sets' names.
struct ValidationSets {
  std::string noun() const { return "a string, or an object of paths by name"; }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::vector<ValidationSet>& values) const;
  std::optional<std::string> check(const std::vector<ValidationSet>& values) const;
  std::string write(const std::vector<ValidationSet>& values) const;
};

// Numbers by regular expressions for the ends of names: {"q_proj": 8}.
struct NamedNumbers {
  Number number;
  bool are_whole = false;

  std::string noun() const { return "an object of numbers by name"; }
  std::string allowed() const { return "each " + number.allowed(); }
  std::optional<Complaint> read(const json::Value& json, std::vector<NamedNumber>& values) const;
  std::optional<std::string> check(const std::vector<NamedNumber>& values) const;
  std::string write(const std::vector<NamedNumber>& values) const;
};

// A regular expression for names, or a list of names.
struct Names {
  std::string noun() const { return "a regular expression, or a list of names"; }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::string& value) const;
  std::optional<std::string> check(const std::string& value) const { return pattern.check(value); }
  std::string write(const std::string& value) const { return pattern.write(value); }

 private:
  static constexpr Pattern pattern{};
};

// Groups of parameters; only their regular expression is needed.
struct ParameterGroups {
  std::string noun() const {
    return "a list of objects {\"parameters\", \"lr\", \"weight_decay\", \"betas\", \"eps\"}";
  }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::vector<ParameterGroup>& values) const;
  std::optional<std::string> check(const std::vector<ParameterGroup>& values) const;
  std::string write(const std::vector<ParameterGroup>& values) const;

 private:
  std::optional<Complaint> read_one(const json::Value& json, ParameterGroup& value) const;
};

// A value that may be absent; null in JSON.
template <class Kind>
struct Optional {
  Kind kind;

  std::string noun() const { return kind.noun(); }
  std::string allowed() const { return kind.allowed(); }
  template <class T>
  std::optional<Complaint> read(const json::Value& json, std::optional<T>& value) const {
    value.reset();
    if (json.is_null()) return {};
    return kind.read(json, value.emplace());
  }
  template <class T>
  std::optional<std::string> check(const std::optional<T>& value) const {
    return value ? kind.check(*value) : std::nullopt;
  }
  template <class T>
  std::string write(const std::optional<T>& value) const {
    return value ? kind.write(*value) : "null";
  }
};

// A list of any length, or, into a std::array, of exactly that length.
template <class Kind>
struct List {
  Kind kind;
  std::optional<std::size_t> length = {};

  std::string noun() const {
    const std::string element = kind.noun();
    const std::string plural = element.substr(element.find(' ') + 1) + "s";
    return length ? str("a list of ", *length, " ", plural) : "a list of " + plural;
  }
  std::string allowed() const { return kind.allowed().empty() ? "" : "each " + kind.allowed(); }
  template <class T>
  std::optional<Complaint> read(const json::Value& json, std::vector<T>& values) const {
    const auto* elements = std::get_if<json::Value::Array>(&json.data);
    if (elements == nullptr) return wrong_type(noun(), json);
    values.assign(elements->size(), T{});
    return read_elements(*elements, std::span(values));
  }
  template <class T, std::size_t size>
  std::optional<Complaint> read(const json::Value& json, std::array<T, size>& values) const {
    const auto* elements = std::get_if<json::Value::Array>(&json.data);
    if (elements == nullptr) return wrong_type(noun(), json);
    if (elements->size() != size) {
      return Complaint{str(": expected ", noun(), ", found ", elements->size()), &json};
    }
    return read_elements(*elements, std::span<T>(values));
  }
  template <class Values>
  std::optional<std::string> check(const Values& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (const auto wrong = kind.check(values[i])) return str("[", i, "]", *wrong);
    }
    return {};
  }
  template <class Values>
  std::string write(const Values& values) const {
    std::vector<std::string> parts;
    for (const auto& value : values) parts.push_back(kind.write(value));
    return "[" + join(parts, ", ") + "]";
  }

 private:
  template <class T>
  std::optional<Complaint> read_elements(const json::Value::Array& elements,
                                         std::span<T> values) const {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (auto wrong = kind.read(elements[i], values[i])) {
        wrong->text = str("[", i, "]", wrong->text);
        return wrong;
      }
    }
    return {};
  }
};

}  // namespace penstock::config
