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
std::vector<PartEnd> part_ends(const std::vector<nn::LayerSpec>& model,
                               const partition::SegmentRange& range) {
  std::vector<PartEnd> ends;
  for (std::int64_t layer = range.first; layer < range.end; ++layer) {
    const partition::LayerMeta& meta = model[static_cast<std::size_t>(layer)].meta;
    for (std::size_t p = 0; p < meta.pieces.size(); ++p) {
      if (meta.pieces[p].behind.empty()) continue;
      const bool is_last = p + 1 == meta.pieces.size();
      ends.push_back({.bound = is_last ? Bound{layer + 1} : Bound{layer, p + 1},
                      .behind = meta.pieces[p].behind,
                      .name = str("piece ", p, " of layer ", in_quotes(meta.name))});
    }
  }
  const bool has_end = !ends.empty() && ends.back().bound.layer == range.end;
  if (!has_end) ends.push_back({.bound = {range.end}});
  return ends;
}

// The layers of a stage from one number to before another.
std::vector<std::shared_ptr<nn::Layer>> layers_between(const StageLayers& layers,
                                                       std::int64_t first, std::int64_t end) {
  const auto layer = [&](std::int64_t i) { return layers.all().begin() + (i - layers.first()); };
  return {layer(first), layer(end)};
}

Segment segment_in_parts(const std::vector<nn::LayerSpec>& model, const StageLayers& layers,
                         const partition::SegmentRange& range, Activations activations,
                         const std::shared_ptr<Exchanges>& exchanges,
                         const std::shared_ptr<Untrained>& untrained) {
  std::vector<LayerRun> parts;
  Borders borders;
  Bound first{range.first};
  for (const PartEnd& end : part_ends(model, range)) {
    const std::int64_t last = end.bound.layer + (end.bound.piece > 0 ? 1 : 0);
    parts.emplace_back(model, first, end.bound, layers_between(layers, first.layer, last),
                       untrained);
    borders.emplace_back(end.behind, parts.back().skips_behind(), end.name, exchanges);
    first = end.bound;
  }
  return {std::move(parts), std::move(borders), activations};
}

}  // namespace

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
    if (exchanges != nullptr) {
      segments.push_back(segment_in_parts(model, layers, range, activations, exchanges, untrained));
      continue;
    }
    segments.emplace_back(
        LayerRun(model, range.first, layers_between(layers, range.first, range.end), untrained),
        activations);
  }
  return segments;
}

}  // namespace penstock::stage
