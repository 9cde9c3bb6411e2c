#include "penstock/plan/config/keys.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/config/deepspeed_keys.h"
#include "penstock/plan/config/fields.h"
#include "penstock/plan/config/initialize_fields.h"
#include "penstock/plan/config/path_visitor.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {
namespace {

class KeyLister : public PathVisitor {
 public:
  template <class T, class Kind>
  void field(std::string_view key, const T& value, const Kind& kind, std::string_view meaning) {
    const std::string allowed = kind.allowed();
    keys_.push_back({.path = path_of(key),
                     .type = allowed.empty() ? kind.noun() : str(kind.noun(), ", ", allowed),
                     .fallback = kind.write(value),
                     .only_for = only_for_,
                     .needs = join(needs_, ", and "),
                     .meaning = std::string(meaning)});
  }

  // Each argument once, with the classes that take it.
  template <class Conditions>
  void arguments(std::string_view key, const ClassName& of, const Arguments&,
                 const Conditions& conditions) {
    std::vector<std::string_view> names;
    for (const NamedClass& each : classes_of(of.family)) {
      for (const Argument& argument : each.arguments) {
        if (std::ranges::find(names, argument.name) != names.end()) continue;
        names.push_back(argument.name);
        const std::size_t outer = needs_.size();
        for (const Condition& condition : conditions(argument.name)) {
          needs_.push_back(condition.needs());
        }
        section(key, [&] { argument_of(of.family, argument); });
        needs_.resize(outer);
      }
    }
  }

  template <class Body>
  void effective(const Condition& condition, Body&& body) {
    needs_.push_back(condition.needs());
    body();
    needs_.pop_back();
  }

  template <class Body>
  void when(bool, const Selector& selector, Body&& body) {
    only_for_ = str(selector.key, " ", selector.choices);
    body();
    only_for_.clear();
  }

  std::vector<KeyInfo> take() { return std::move(keys_); }

 private:
  void argument_of(ClassFamily family, const Argument& argument) {
    std::vector<std::string> owners;
    for (const NamedClass& each : classes_of(family)) {
      if (each.find(argument.name) != nullptr) owners.emplace_back(each.name);
    }
    keys_.push_back({.path = path_of(argument.name),
                     .type = std::string(argument.kind->noun),
                     .fallback = "null",
                     .only_for = {},
                     .needs = join(needs_, ", and "),
                     .meaning = "of " + join(owners, ", ")});
  }

  std::string only_for_;
  std::vector<std::string> needs_;
  std::vector<KeyInfo> keys_;
};

std::vector<KeyInfo> list_keys(Dialect dialect) {
  KeyLister lister;
  switch (dialect) {
    case Dialect::Train: {
      const Config defaults;
      visit_config(lister, defaults);
      break;
    }
    case Dialect::Initialize: {
      const InitializeConfig defaults;
      visit_initialize(lister, defaults);
      break;
    }
  }
  return lister.take();
}

// The only key of another section with that name: a "lr" at the top level is optimizer.params.lr.
std::optional<std::string> misplaced(Dialect dialect, std::string_view key) {
  if (key.size() > kWordMax) return {};
  std::optional<std::string> found;
  for (const KeyInfo& known : known_keys(dialect)) {
    if (!known.path.ends_with(str(".", key))) continue;
    if (found) return {};
    found = known.path;
  }
  return found;
}

// All keys and sections, as an override may name them.
std::vector<std::string> known_paths() {
  std::set<std::string> paths;
  for (const KeyInfo& known : known_keys()) {
    paths.insert(known.path);
    for (std::size_t dot = known.path.find('.'); dot != std::string::npos;
         dot = known.path.find('.', dot + 1)) {
      paths.insert(known.path.substr(0, dot));
    }
  }
  return {paths.begin(), paths.end()};
}

}  // namespace

const std::vector<KeyInfo>& known_keys(Dialect dialect) {
  static const std::vector<KeyInfo> of_train = list_keys(Dialect::Train);
  static const std::vector<KeyInfo> of_initialize = list_keys(Dialect::Initialize);
  return dialect == Dialect::Train ? of_train : of_initialize;
}

std::string unknown_key(Dialect dialect, std::string_view key, std::string_view section,
                        const std::vector<std::string>& siblings) {
  std::string text = str("unknown key ", in_quotes(key));
  if (!section.empty()) text += str(" in ", section);
  if (const auto path = misplaced(dialect, key))
    return str(text, "; did you mean ", json_quote(*path), "?");
  std::vector<std::string> candidates = siblings;
  const std::vector<std::string> foreign = foreign_names(dialect, section);
  candidates.insert(candidates.end(), foreign.begin(), foreign.end());
  return text + suggest(key, candidates);
}

std::string unknown_path(std::string_view path) {
  const std::vector<std::string> paths = known_paths();
  if (std::binary_search(paths.begin(), paths.end(), path)) return "";
  const std::string text = str("unknown key ", in_quotes(path));
  if (const ForeignKeys* const row = find_foreign(Dialect::Train, path)) {
    return str(text, ": it is DeepSpeed's; ", refusal(*row));
  }
  if (is_foreign_section(Dialect::Train, path))
    return str(text, ": DeepSpeed has it, penstock does not");
  const std::size_t dot = path.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? path : path.substr(dot + 1);
  const auto moved = misplaced(Dialect::Train, last);
  const std::string near = suggest(path, paths);
  if (near.empty() && moved) return str(text, "; did you mean ", json_quote(*moved), "?");
  if (near.empty() && dot == std::string_view::npos)
    return unknown_key(Dialect::Train, path, "", {});
  return text + near;
}

}  // namespace penstock::config
