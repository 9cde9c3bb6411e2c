// Strong integers, so that a stage is never passed where a rank is meant.
//
// Every planning layer names its things with these.  They print as plain numbers.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>

namespace penstock {

template <class Tag>
struct Id {
  std::int32_t value = 0;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}

  // For indexing arrays that hold one entry an id.
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Id& id) { return out << id.value; }
};

using Rank = Id<struct RankTag>;              // Global process number, in [0, world size).
using StageId = Id<struct StageTag>;          // Global model piece, in [0, stages).
using Microbatch = Id<struct MicrobatchTag>;  // Slice of one replica's batch, in [0, microbatches).

}  // namespace penstock

template <class Tag>
struct std::hash<penstock::Id<Tag>> {
  std::size_t operator()(const penstock::Id<Tag>& id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
