// The classes of optimizers and of learning rates' courses that a configuration may name, with the
// arguments that each takes.
//
// penstock.initialize makes an object of the class that `optimizer.type` or `scheduler.type` says;
// the reader judges by this table, so what it takes is what the class takes
// (tests/regress/config_check_contradicts_initialize_test.py holds it to their signatures).  Knows
// no objects: what depends on parameters or ranks is for the class, or the engine, to refuse.
//
// Source: torch 2.13's torch.optim and torch.optim.lr_scheduler; penstock.lr_schedules.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/json/tree.h"
#include "penstock/plan/config/kinds.h"

namespace penstock::config {

enum class ClassFamily : std::uint8_t { Optimizers, Schedulers };

// What an argument may be: a kind whose value stays JSON.
struct ArgumentKind {
  std::string_view noun;  // "a number, at least 0".
  // A complaint, or nothing and the value in `exact`: 10 of 1e1 where the class wants an integer.
  std::optional<Complaint> (*read)(const json::Value& json, json::Value& exact);
};

struct Argument {
  std::string_view name;
  const ArgumentKind* kind;
  bool is_needed = false;
};

struct NamedClass {
  std::string_view name;
  std::span<const Argument> arguments;
  std::string_view refused = {};  // Why it is not taken, and what to do; "" where it is.

  const Argument* find(std::string_view argument) const;
};

// Classes in the order of the page of keys.
std::span<const NamedClass> classes_of(ClassFamily family);

// Null where there is none.  Optimizers have their names in any case, as DeepSpeed's.
const NamedClass* find_class(ClassFamily family, std::string_view name);

// The name of a class that can be taken, or the class of that name.
struct ClassName {
  ClassFamily family = ClassFamily::Optimizers;
  std::string_view name = {};  // Empty: of no class.

  const NamedClass* find() const { return name.empty() ? nullptr : find_class(family, name); }
  std::string noun() const;
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::string& value) const;
  std::optional<std::string> check(const std::string&) const { return {}; }
  std::string write(const std::string& value) const {
    return value.empty() ? "null" : json_quote(value);
  }
};

// What `params` says, by argument, as the class takes it.
using Arguments = std::map<std::string, json::Value, std::less<>>;

// The number under that name; 0 where there is none.
double number_of(const Arguments& given, std::string_view name);

// Condition of SGD's `nesterov`, in words that go on behind its key.
inline constexpr std::string_view kNesterovNeeds =
    " = true: needs momentum above 0, and dampening 0";

// What is wrong with arguments that are right one by one: the name of one, and why.
struct WrongArgument {
  std::string name;
  std::string why;  // Continues the key, as a complaint does.
};
std::vector<WrongArgument> check_optimizer(const NamedClass& optimizer, const Arguments& given);
// optimizer: null where it is not known.
std::vector<WrongArgument> check_scheduler(const NamedClass& scheduler, const Arguments& given,
                                           const NamedClass* optimizer);

}  // namespace penstock::config
