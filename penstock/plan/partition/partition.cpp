#include "penstock/partition/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <regex>

#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::partition {
namespace {

std::vector<std::int64_t> uniform_bounds(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> bounds = {0};
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    bounds.push_back(bounds.back() + layers / stages + (stage < layers % stages ? 1 : 0));
  }
  return bounds;
}

// Exact: dynamic programme over (first layer, stages left), O(layers x stages x log(layers)).
std::vector<std::int64_t> balanced_bounds(const std::vector<double>& costs, std::size_t stages) {
  const std::size_t layers = costs.size();
  std::vector<double> before(layers + 1, 0.0);  // Cost of layers [0, i) at before[i].
  for (std::size_t i = 0; i < layers; ++i) before[i + 1] = before[i] + costs[i];

  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  // largest[k][i]: smallest possible largest stage when layers [i, end) form k stages.
  std::vector<std::vector<double>> largest(stages + 1, std::vector<double>(layers + 1, kInfinite));
  largest[0][layers] = 0.0;
  for (std::size_t k = 1; k <= stages; ++k) {
    for (std::size_t i = 0; i + k <= layers; ++i) {
      // The later the first stage ends, the larger it is, and the smaller the largest of the rest.
      std::size_t end = i + 1, last = layers - k + 1;
      while (end < last) {
        const std::size_t middle = (end + last) / 2;
        const bool is_larger = before[middle] - before[i] >= largest[k - 1][middle];
        (is_larger ? last : end) = is_larger ? middle : middle + 1;
      }
      largest[k][i] = std::max(before[end] - before[i], largest[k - 1][end]);
      if (end > i + 1) largest[k][i] = std::min(largest[k][i], largest[k - 1][end - 1]);
    }
  }
  std::vector<std::int64_t> bounds = {0};
  std::size_t i = 0;
  for (std::size_t k = stages; k > 0; --k) {
    std::size_t end = i + 1;
    while (std::max(before[end] - before[i], largest[k - 1][end]) > largest[k][i]) ++end;
    bounds.push_back(static_cast<std::int64_t>(end));
    i = end;
  }
  return bounds;
}

std::vector<double> parameter_costs(const ModelMeta& layers) {
  std::vector<double> costs;
  for (const auto& layer : layers) costs.push_back(static_cast<double>(layer.parameters));
  return costs;
}

std::vector<double> checked_costs(const ModelMeta& layers, const ByCost& method) {
  if (method.costs.size() != layers.size()) {
    throw ConfigError(str("partition by layer cost: ", counted(method.costs, "cost"), " given for ",
                          counted(layers, "layer"), "; give one per layer"));
  }
  for (std::size_t i = 0; i < method.costs.size(); ++i) {
    if (!(method.costs[i] >= 0) || std::isinf(method.costs[i])) {
      throw ConfigError(str("partition by layer cost: cost ", method.costs[i], " of layer ", i,
                            " must be a finite number, at least 0"));
    }
  }
  if (std::isinf(std::accumulate(method.costs.begin(), method.costs.end(), 0.0))) {
    throw ConfigError(
        "partition by layer cost: the sum of the costs is not finite; scale them down");
  }
  return method.costs;
}

std::vector<double> type_costs(const ModelMeta& layers, const ByType& method) {
  std::regex regex;
  try {
    regex = std::regex(method.regex, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& error) {
    throw ConfigError(
        str("partition type:", method.regex, ": not a regular expression: ", error.what()));
  }
  std::vector<double> costs;
  std::vector<std::string> types;
  for (const auto& layer : layers) {
    costs.push_back(std::regex_search(layer.type, regex) ? 1.0 : 0.0);
    if (std::find(types.begin(), types.end(), layer.type) == types.end()) {
      types.push_back(layer.type);
    }
  }
  if (std::count(costs.begin(), costs.end(), 0.0) == std::ssize(costs)) {
    throw ConfigError(str("partition type:", method.regex, ": matches no layer; the types are ",
                          join(types, ", ")));
  }
  return costs;
}

std::vector<std::int64_t> checked_bounds(const ModelMeta& layers, std::int32_t stages,
                                         const ByBounds& method) {
  const auto& bounds = method.bounds;
  const auto rising = [](std::int64_t a, std::int64_t b) { return a >= b; };
  if (std::ssize(bounds) != stages + 1 || bounds.front() != 0 ||
      bounds.back() != std::ssize(layers) ||
      std::adjacent_find(bounds.begin(), bounds.end(), rising) != bounds.end()) {
    throw ConfigError(str("partition bounds [", join(bounds, ", "), "]: ", counted(stages, "stage"),
                          " of ", counted(layers, "layer"), " need ", stages + 1,
                          " rising numbers from 0 to ", layers.size()));
  }
  return bounds;
}

}  // namespace

Partition partition(const ModelMeta& layers, std::int32_t stages, const Method& method) {
  if (layers.empty()) throw ConfigError("cannot cut a model without layers into stages");
  if (stages < 1 || stages > std::ssize(layers)) {
    throw ConfigError(str("cannot cut ", counted(layers, "layer"), " into ",
                          counted(stages, "stage"), ": a stage holds at least one layer; use 1 to ",
                          counted(layers, "stage"), ", or a model with more layers"));
  }
  const auto count = static_cast<std::size_t>(stages);
  struct Visitor {
    const ModelMeta& layers;
    std::size_t count;
    std::vector<std::int64_t> operator()(const Uniform&) const {
      return uniform_bounds(std::ssize(layers), static_cast<std::int64_t>(count));
    }
    std::vector<std::int64_t> operator()(const ByParameters&) const {
      return balanced_bounds(parameter_costs(layers), count);
    }
    std::vector<std::int64_t> operator()(const ByCost& by) const {
      return balanced_bounds(checked_costs(layers, by), count);
    }
    std::vector<std::int64_t> operator()(const ByBounds& by) const {
      return checked_bounds(layers, static_cast<std::int32_t>(count), by);
    }
    std::vector<std::int64_t> operator()(const ByType& by) const {
      return balanced_bounds(type_costs(layers, by), count);
    }
  };
  return Partition{std::visit(Visitor{layers, count}, method)};
}

Partition one_layer_each(std::int32_t layers) {
  Partition partition;
  for (std::int64_t bound = 0; bound <= layers; ++bound) partition.bounds.push_back(bound);
  return partition;
}

std::string to_string(const Partition& partition, const ModelMeta& layers) {
  std::string text;
  for (std::int32_t s = 0; s < partition.stages(); ++s) {
    const StageId stage(s);
    const auto first = static_cast<std::size_t>(partition.first_layer(stage));
    const auto end = static_cast<std::size_t>(partition.end_layer(stage));
    std::int64_t parameters = 0;
    for (std::size_t i = first; i < end; ++i) parameters += layers[i].parameters;
    text += str("stage ", s, ": layers ", first, "..", end - 1, " (", layers[first].name, " .. ",
                layers[end - 1].name, "), ", parameters, " parameters\n");
  }
  return text;
}

}  // namespace penstock::partition
