#include "penstock/plan/partition/segment_ranges.h"

#include <algorithm>
#include <regex>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::partition {
namespace {

// True of layers of the model whose activations are computed again.
std::vector<bool> recomputed(const ModelMeta& model, const Recomputation& recomputation) {
  std::vector<bool> layers(model.size(), recomputation.interval > 0);
  if (recomputation.interval == 0 || recomputation.layers.empty()) return layers;
  try {
    const std::regex regex(recomputation.layers, std::regex::ECMAScript | std::regex::icase);
    for (std::size_t i = 0; i < model.size(); ++i) {
      layers[i] = std::regex_search(model[i].type, regex);
    }
  } catch (const std::regex_error& error) {
    throw ConfigError(str("checkpointed layers ", in_quotes(recomputation.layers),
                          ": not a regular expression: ", error.what()));
  }
  if (std::ranges::find(layers, true) == layers.end()) {
    std::set<std::string> types;
    for (const LayerMeta& layer : model) types.insert(layer.type);
    throw ConfigError(str("checkpointed layers ", in_quotes(recomputation.layers),
                          ": matches no layer; the types are ", join(types, ", ")));
  }
  return layers;
}

}  // namespace

std::vector<SegmentRange> segment_ranges(const ModelMeta& model, std::int64_t first_layer,
                                         std::int64_t end_layer,
                                         const Recomputation& recomputation) {
  const std::vector<bool> again = recomputed(model, recomputation);
  const auto is_again = [&](std::int64_t i) { return again[static_cast<std::size_t>(i)]; };
  std::vector<SegmentRange> ranges;
  for (std::int64_t first = first_layer, end = first_layer; first < end_layer; first = end) {
    const bool recompute = is_again(first);
    while (end < end_layer && is_again(end) == recompute &&
           (!recompute || end - first < recomputation.interval)) {
      ++end;
    }
    ranges.push_back({.first = first, .end = end, .is_recomputed = recompute});
  }
  return ranges;
}

}  // namespace penstock::partition
