// How a run goes on with fewer ranks than it began with.
//
// `penstock train --elastic` asks it when ranks are gone for good.  Knows no processes, and not
// whether a schedule exists for a layout.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/config/override.h"
#include "penstock/config/resolve.h"
#include "penstock/mesh/mesh.h"

namespace penstock::config {

// What the number of ranks decides on.
struct RankLayout {
  mesh::Shape mesh;
  Batch batch;
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};

// The layouts of `ranks` ranks that train as `before` does: as many samples a step, in microbatches
// of the same size, so that only the number of microbatches a replica changes.  Those with more
// pipeline stages first, and none with more than `before`: a rank may have no room for more layers,
// so what needs the least memory comes first.
std::vector<RankLayout> layouts_on(std::int64_t ranks, const RankLayout& before);

// `config` with this layout, and the command line's words for it.
Config with_layout(Config config, const RankLayout& layout);
std::vector<Override> overrides_of(const RankLayout& layout);

// "pipe(2) x data(1) for pipe(2) x data(2), 8 microbatches a replica for 4; 8 samples a step as
// before"
std::string change_text(const RankLayout& before, const RankLayout& after);

}  // namespace penstock::config
