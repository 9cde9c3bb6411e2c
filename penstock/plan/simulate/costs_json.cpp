#include "penstock/plan/simulate/costs_json.h"

#include <array>
#include <memory>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"

namespace penstock::simulate {
namespace {

using json::Member;
using json::Value;
using verify::PerStage;

[[noreturn]] void refuse(const Value& value, std::string_view key, const std::string& why) {
  throw ParseError(str(to_string(json::origin_of(value)), ": ", key, ": ", why));
}

double number(const Value& value, std::string_view key) {
  double result = 0.0;
  if (const auto* integer = std::get_if<std::int64_t>(&value.data)) {
    result = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(&value.data)) {
    result = *real;
  } else {
    refuse(value, key, "expected a number, found " + json::found(value));
  }
  if (!verify::is_cost(result)) {
    refuse(value, key, str("expected ", verify::kCostRange, ", found ", json::found(value)));
  }
  return result;
}

std::vector<double> numbers_of_stage(const Value& value, std::string_view key) {
  const auto* list = std::get_if<Value::Array>(&value.data);
  if (list == nullptr) return {number(value, key)};
  if (list->empty()) refuse(value, key, "expected a number per microbatch, found an empty list");
  std::vector<double> numbers;
  numbers.reserve(list->size());
  for (const Value& item : *list) numbers.push_back(number(item, key));
  return numbers;
}

PerStage per_stage(const Value& value, std::string_view key) {
  const auto* list = std::get_if<Value::Array>(&value.data);
  if (list == nullptr) return number(value, key);
  if (list->empty()) refuse(value, key, "expected a number per stage, found an empty list");
  std::vector<std::vector<double>> rows;
  rows.reserve(list->size());
  for (const Value& item : *list) rows.push_back(numbers_of_stage(item, key));
  return PerStage(std::move(rows));
}

std::int32_t rank(const Value& value, std::string_view key) {
  constexpr std::int64_t kLimit = 1 << 20;
  const auto* integer = std::get_if<std::int64_t>(&value.data);
  if (integer == nullptr || *integer < 0 || *integer > kLimit) {
    refuse(value, key, "expected a rank, found " + json::found(value));
  }
  return static_cast<std::int32_t>(*integer);
}

// Calls read(key, value) for each member; it says whether it knows the key.
template <class Read>
void read_members(const Value& json, std::string_view what, const std::vector<std::string>& keys,
                  const Read& read) {
  const auto* object = std::get_if<Value::Object>(&json.data);
  if (object == nullptr) refuse(json, what, "expected an object, found " + json::found(json));
  for (const Member& member : *object) {
    if (read(member.key, member.value)) continue;
    throw ParseError(str(to_string(json::origin_of_key(member)), ": unknown key ",
                         in_quotes(member.key), " in ", what, suggest(member.key, keys)),
                     {str("known keys: ", join(keys, ", "))});
  }
}

Link link(const Value& json) {
  Link link;
  bool has_from = false;
  bool has_to = false;
  read_members(json, "links", {"from", "to", "latency", "bandwidth"},
               [&](const std::string& key, const Value& value) {
                 if (key == "from") {
                   link.from = Rank(rank(value, key));
                   has_from = true;
                 } else if (key == "to") {
                   link.to = Rank(rank(value, key));
                   has_to = true;
                 } else if (key == "latency") {
                   link.latency = number(value, key);
                 } else if (key == "bandwidth") {
                   link.bandwidth = number(value, key);
                 } else {
                   return false;
                 }
                 return true;
               });
  if (!has_from || !has_to) refuse(json, "links", "a link needs \"from\" and \"to\"");
  return link;
}

// The costs that have a number for each stage.
struct StageCost {
  std::string_view key;
  PerStage Costs::* member;
};
constexpr std::array<StageCost, 9> kStageCosts = {{{"forward", &Costs::forward},
                                                   {"input", &Costs::input},
                                                   {"weight", &Costs::weight},
                                                   {"forward_exchange", &Costs::forward_exchange},
                                                   {"input_exchange", &Costs::input_exchange},
                                                   {"message", &Costs::message},
                                                   {"gather", &Costs::gather},
                                                   {"reduce", &Costs::reduce},
                                                   {"activation", &Costs::activation}}};
// A cost that is one number.
struct SingleCost {
  std::string_view key;
  double Costs::* member;
};
constexpr std::array<SingleCost, 4> kSingleCosts = {{{"overlap", &Costs::overlap},
                                                     {"latency", &Costs::latency},
                                                     {"optimizer", &Costs::optimizer},
                                                     {"keep", &Costs::keep}}};

std::vector<std::string> known_keys() {
  std::vector<std::string> keys;
  for (const StageCost& cost : kStageCosts) keys.emplace_back(cost.key);
  for (const SingleCost& cost : kSingleCosts) keys.emplace_back(cost.key);
  keys.insert(keys.end(), {"backward", "backward_exchange", "bandwidth", "links"});
  return keys;
}

bool read_cost(const std::string& key, const Value& value, Costs& costs) {
  for (const StageCost& cost : kStageCosts) {
    if (key != cost.key) continue;
    costs.*cost.member = per_stage(value, key);
    return true;
  }
  for (const SingleCost& cost : kSingleCosts) {
    if (key != cost.key) continue;
    costs.*cost.member = number(value, key);
    return true;
  }
  if (key == "backward") {
    costs.backward = per_stage(value, key);
  } else if (key == "backward_exchange") {
    costs.backward_exchange = per_stage(value, key);
  } else if (key == "bandwidth") {
    costs.bandwidth = number(value, key);
  } else if (key == "links") {
    const auto* list = std::get_if<Value::Array>(&value.data);
    if (list == nullptr) refuse(value, key, "expected a list, found " + json::found(value));
    for (const Value& item : *list) costs.links.push_back(link(item));
  } else {
    return false;
  }
  return true;
}

std::string number_text(const std::vector<double>& row) {
  if (row.size() == 1) return shortest(row.front());
  std::vector<std::string> numbers;
  for (const double number : row) numbers.push_back(shortest(number));
  return "[" + join(numbers, ", ") + "]";
}

std::string per_stage_text(const PerStage& cost) {
  const auto& rows = cost.rows();
  if (rows.size() == 1 && rows.front().size() == 1) return number_text(rows.front());
  std::vector<std::string> stages;
  for (const std::vector<double>& row : rows) stages.push_back(number_text(row));
  return "[" + join(stages, ", ") + "]";
}

std::string links_text(const std::vector<Link>& links) {
  std::vector<std::string> items;
  for (const Link& link : links) {
    items.push_back(str(
        "{\"from\": ", link.from, ", \"to\": ", link.to, ", \"latency\": ", shortest(link.latency),
        link.bandwidth ? ", \"bandwidth\": " + shortest(*link.bandwidth) : "", "}"));
  }
  return "[" + join(items, ", ") + "]";
}

}  // namespace

Costs read_costs(std::string name, std::string text) {
  return read_costs(json::parse(std::make_shared<json::Source>(
                                    json::Source{.name = std::move(name), .text = std::move(text)}),
                                kCostsBytesMax));
}

Costs read_costs(const Value& json) {
  Costs costs;
  read_members(json, "the costs", known_keys(), [&](const std::string& key, const Value& value) {
    return read_cost(key, value, costs);
  });
  return costs;
}

std::string to_json(const Costs& costs) {
  std::vector<std::string> members;
  const auto add = [&](std::string_view key, const std::string& text) {
    members.push_back(str(json_quote(key), ": ", text));
  };
  const Costs standard;
  for (const StageCost& cost : kStageCosts) {
    const std::string text = per_stage_text(costs.*cost.member);
    if (text != per_stage_text(standard.*cost.member)) add(cost.key, text);
  }
  if (costs.backward) add("backward", per_stage_text(*costs.backward));
  if (costs.backward_exchange) add("backward_exchange", per_stage_text(*costs.backward_exchange));
  for (const SingleCost& cost : kSingleCosts) {
    if (costs.*cost.member != standard.*cost.member) add(cost.key, shortest(costs.*cost.member));
  }
  if (costs.bandwidth) add("bandwidth", shortest(*costs.bandwidth));
  if (!costs.links.empty()) add("links", links_text(costs.links));
  return "{" + join(members, ", ") + "}";
}

}  // namespace penstock::simulate
