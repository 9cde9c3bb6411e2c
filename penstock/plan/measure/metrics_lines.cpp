#include "penstock/plan/measure/metrics_lines.h"

#include <algorithm>
#include <memory>
#include <string>
#include <variant>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"

namespace penstock::measure {
namespace {

const json::Value* find(const json::Value& value, std::string_view key) {
  const auto* const object = std::get_if<json::Value::Object>(&value.data);
  const json::Member* const found = object == nullptr ? nullptr : json::find(*object, key);
  return found == nullptr ? nullptr : &found->value;
}

std::optional<double> number_of(const json::Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value.data)) {
    return static_cast<double>(*whole);
  }
  const auto* const real = std::get_if<double>(&value.data);
  return real == nullptr ? std::nullopt : std::optional(*real);
}

std::optional<double> number(const json::Value& value, std::string_view key) {
  const json::Value* const found = find(value, key);
  return found == nullptr ? std::nullopt : number_of(*found);
}

std::vector<std::pair<std::string, double>> numbers(const json::Value& value,
                                                    std::string_view key) {
  std::vector<std::pair<std::string, double>> all;
  const json::Value* const found = find(value, key);
  const auto* const object =
      found == nullptr ? nullptr : std::get_if<json::Value::Object>(&found->data);
  if (object == nullptr) return all;
  for (const json::Member& each : *object) {
    if (const auto loss = number_of(each.value)) all.emplace_back(each.key, *loss);
  }
  return all;
}

std::optional<MetricsLine> line_of(std::string_view text) {
  constexpr double kStepMax = 1e15;
  if (text.size() > json::kBytesMax) return std::nullopt;  // It would be copied to be refused.
  try {
    const json::Value value =
        json::parse(std::make_shared<json::Source>("metrics", std::string(text)));
    const double step = number(value, "step").value_or(0);
    if (!(step >= 1 && step <= kStepMax)) return std::nullopt;
    return MetricsLine{.step = static_cast<std::int64_t>(step),
                       .loss = number(value, "loss"),
                       .validation = number(value, "val_loss"),
                       .sets = numbers(value, "val_losses"),
                       .is_best = find(value, "best") != nullptr,
                       .text = text};
  } catch (const ParseError&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<MetricsLine> metrics_lines(std::string_view text) {
  std::vector<MetricsLine> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (const auto read = line_of(line)) lines.push_back(*read);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return lines;
}

std::string lines_up_to(std::string_view text, std::int64_t step) {
  std::string kept;
  for (const MetricsLine& line : metrics_lines(text)) {
    if (line.step <= step) kept.append(line.text).append("\n");
  }
  return kept;
}

std::int64_t steps_behind(std::int64_t step, std::string_view text) {
  std::int64_t steps = 0;
  for (const MetricsLine& line : metrics_lines(text)) steps = std::max(steps, line.step - step);
  return steps;
}

}  // namespace penstock::measure
