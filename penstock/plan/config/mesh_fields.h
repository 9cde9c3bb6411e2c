// The keys of "mesh", one for each axis: what fields.h visits of them.
//
// fields.h alone includes it.  Knows no sizes: resolve.h does.
#pragma once
#include <cstddef>
#include <cstdint>

#include "penstock/core/mesh/axes.h"
#include "penstock/plan/config/kinds.h"

namespace penstock::config {

inline constexpr std::int64_t kManyRanks = 65536;  // Limit along an axis.

// A key for each axis.
template <class Visitor, class MeshT>
void visit_mesh(Visitor& v, MeshT& m) {
  auto& [pipe, data, others] = m;
  const Integer ranks{1, kManyRanks};
  const auto field = [&v](mesh::Axis axis, auto& size, const auto& kind) {
    v.field(mesh::row_of(axis).name, size, kind, mesh::row_of(axis).meaning);
  };
  field(mesh::Axis::Pipe, pipe, ranks);
  field(mesh::Axis::Data, data, Optional{ranks});
  for (std::size_t i = 0; i < others.size(); ++i) {
    field(mesh::kEveryAxis[mesh::kAxesWithField + i], others[i], ranks);
  }
}

}  // namespace penstock::config
