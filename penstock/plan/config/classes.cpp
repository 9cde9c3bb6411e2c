#include "penstock/plan/config/classes.h"

#include <algorithm>

#include "penstock/core/text.h"

namespace penstock::config {
namespace {

bool is_true(const Arguments& given, std::string_view name) {
  const auto found = given.find(name);
  const auto* flag = found == given.end() ? nullptr : std::get_if<bool>(&found->second.data);
  return flag != nullptr && *flag;
}

bool has_value(const Arguments& given, std::string_view name) {
  const auto found = given.find(name);
  return found != given.end() && !found->second.is_null();
}

std::vector<WrongArgument> missing(const NamedClass& of, const Arguments& given) {
  std::vector<WrongArgument> wrong;
  for (const Argument& argument : of.arguments) {
    if (!argument.is_needed || given.contains(argument.name)) continue;
    wrong.push_back({std::string(argument.name),
                     str(" is missing: ", of.name, " needs ", argument.kind->noun)});
  }
  return wrong;
}

}  // namespace

const Argument* NamedClass::find(std::string_view argument) const {
  const auto found = std::ranges::find(arguments, argument, &Argument::name);
  return found == arguments.end() ? nullptr : &*found;
}

const NamedClass* find_class(ClassFamily family, std::string_view name) {
  const auto classes = classes_of(family);
  const auto found = std::ranges::find_if(classes, [&](const NamedClass& each) {
    return each.name == name ||
           (family == ClassFamily::Optimizers && lower_case(each.name) == lower_case(name));
  });
  return found == classes.end() ? nullptr : &*found;
}

std::string ClassName::noun() const {
  std::vector<std::string> names;
  for (const NamedClass& each : classes_of(family)) {
    if (each.refused.empty()) names.emplace_back(each.name);
  }
  return either(names);
}

std::optional<Complaint> ClassName::read(const json::Value& json, std::string& value) const {
  const auto* text = std::get_if<std::string>(&json.data);
  if (text == nullptr || text->empty()) return wrong_type("the name of a class", json);
  const NamedClass* const found = find_class(family, *text);
  if (found != nullptr && found->refused.empty()) {
    value = std::string(found->name);
    return {};
  }
  if (found != nullptr) {
    return Complaint{str(" = ", in_quotes(*text), ": ", found->refused), &json};
  }
  std::vector<std::string> names;
  for (const NamedClass& each : classes_of(family)) names.emplace_back(each.name);
  return Complaint{str(" = ", in_quotes(*text), ": must be ", noun(), suggest(*text, names)),
                   &json};
}

double number_of(const Arguments& given, std::string_view name) {
  const auto found = given.find(name);
  const auto* value = found == given.end() ? nullptr : std::get_if<double>(&found->second.data);
  return value == nullptr ? 0.0 : *value;
}

std::vector<WrongArgument> check_optimizer(const NamedClass& optimizer, const Arguments& given) {
  std::vector<WrongArgument> wrong = missing(optimizer, given);
  if (is_true(given, "fused") && is_true(given, "foreach")) {
    wrong.push_back({"fused", " = true: foreach is true, too; take one of them"});
  }
  if (is_true(given, "nesterov") && optimizer.name == "SGD" &&
      (number_of(given, "momentum") <= 0 || number_of(given, "dampening") != 0)) {
    wrong.push_back({"nesterov", std::string(kNesterovNeeds)});
  }
  return wrong;
}

std::vector<WrongArgument> check_scheduler(const NamedClass& scheduler, const Arguments& given,
                                           const NamedClass* optimizer) {
  std::vector<WrongArgument> wrong = missing(scheduler, given);
  const bool has_both = has_value(given, "epochs") && has_value(given, "steps_per_epoch");
  if (scheduler.name == "OneCycleLR" && !has_value(given, "total_steps") && !has_both) {
    wrong.push_back(
        {"total_steps", " is missing: OneCycleLR needs it, or epochs and steps_per_epoch"});
  }
  const bool may_cycle = scheduler.find("cycle_momentum") != nullptr;
  const bool cycles = !given.contains("cycle_momentum") || is_true(given, "cycle_momentum");
  if (may_cycle && cycles && optimizer != nullptr && optimizer->find("momentum") == nullptr &&
      optimizer->find("betas") == nullptr) {
    wrong.push_back(
        {"cycle_momentum", str(" = true: ", optimizer->name, " has no momentum; set it to false")});
  }
  return wrong;
}

}  // namespace penstock::config
