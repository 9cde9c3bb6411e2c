#include "penstock/runtime/stage/stage_segments.h"

#include <algorithm>
#include <string>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/runtime/nn/loss_layer.h"

namespace penstock::stage {
namespace {

// The places behind each part of layers that run in pieces: behind each exchange, and the last.
struct PartEnd {
  Bound bound;
  std::vector<exchange::Exchange> behind = {};
  std::string name = {};  // "piece 0 of layer "fc"".
};
std::vector<PartEnd> part_ends(const std::vector<nn::LayerSpec>& model, std::int64_t first,
                               std::int64_t end) {
  std::vector<PartEnd> ends;
  for (std::int64_t layer = first; layer < end; ++layer) {
    const partition::LayerMeta& meta = model[static_cast<std::size_t>(layer)].meta;
    for (std::size_t p = 0; p < meta.pieces.size(); ++p) {
      if (meta.pieces[p].behind.empty()) continue;
      const bool is_last = p + 1 == meta.pieces.size();
      ends.push_back({.bound = is_last ? Bound{layer + 1} : Bound{layer, p + 1},
                      .behind = meta.pieces[p].behind,
                      .name = str("piece ", p, " of layer ", in_quotes(meta.name))});
    }
  }
  const bool has_end = !ends.empty() && ends.back().bound.layer == end;
  if (!has_end) ends.push_back({.bound = {end}});
  return ends;
}

// The layers, whose first has number `begin`, from one number to before another.
std::vector<std::shared_ptr<nn::Layer>> layers_between(
    const std::vector<std::shared_ptr<nn::Layer>>& layers, std::int64_t begin, std::int64_t first,
    std::int64_t end) {
  return {layers.begin() + (first - begin), layers.begin() + (end - begin)};
}

}  // namespace

LayerParts layer_parts(const std::vector<nn::LayerSpec>& model, std::int64_t first,
                       const std::vector<std::shared_ptr<nn::Layer>>& layers,
                       const std::shared_ptr<Exchanges>& exchanges,
                       const std::shared_ptr<Untrained>& untrained) {
  LayerParts parts;
  if (exchanges == nullptr) {
    parts.runs.emplace_back(model, first, layers, untrained);
    parts.borders.resize(1);
    return parts;
  }
  Bound begin{first};
  for (const PartEnd& end : part_ends(model, first, first + std::ssize(layers))) {
    const std::int64_t last = end.bound.layer + (end.bound.piece > 0 ? 1 : 0);
    parts.runs.emplace_back(model, begin, end.bound,
                            layers_between(layers, first, begin.layer, last), untrained);
    parts.borders.emplace_back(end.behind, parts.runs.back().skips_behind(), end.name, exchanges);
    begin = end.bound;
  }
  return parts;
}

std::vector<Segment> make_segments(const std::vector<nn::LayerSpec>& model,
                                   const StageLayers& layers,
                                   const partition::Recomputation& checkpointing,
                                   const std::shared_ptr<Exchanges>& exchanges,
                                   const std::shared_ptr<Untrained>& untrained) {
  const std::int64_t end = std::min(layers.end(), nn::layers_in_line(model));
  std::vector<Segment> segments;
  for (const partition::SegmentRange& range :
       partition::segment_ranges(nn::meta_of(model), layers.first(), end, checkpointing)) {
    const auto activations = range.is_recomputed ? Activations::Recomputed : Activations::Kept;
    LayerParts parts = layer_parts(
        model, range.first, layers_between(layers.all(), layers.first(), range.first, range.end),
        exchanges, untrained);
    segments.emplace_back(std::move(parts.runs), std::move(parts.borders), activations);
  }
  return segments;
}

}  // namespace penstock::stage
